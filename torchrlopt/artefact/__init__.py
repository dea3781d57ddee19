"""A rewritten model as a file that runs without Dynamo, search, check or timing.

`compile/stored_call.py` makes the content of a file, `lowered.py` its graphs, `file.py` writes and reads it,
and `module.py` runs it. What loading imports is light: the parts that lower graphs are imported only to make
a file, or to build a graph again on another machine.
"""
