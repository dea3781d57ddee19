"""All private PyTorch names that the package uses; no other module imports any.

PyTorch may change these without notice. `names.py` lists the versions tried and, for each name, what happens
if it is missing. `dynamo.py` and `inductor.py` are expensive to import; the other modules are not.
"""
