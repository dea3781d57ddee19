"""The generator of substitutions: enumerate, pair, test, prune, generalise, emit.

Its inner loop is C++ (`csrc/`), which `python setup.py build_ext --inplace` builds.
"""
