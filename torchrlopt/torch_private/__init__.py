"""All private PyTorch names that the package uses; no other module imports any.

PyTorch may change these without notice. `names.py` lists the versions tried and what happens if a
name is missing. `dynamo.py` and `inductor.py` are expensive to import; the other modules are not.
"""
