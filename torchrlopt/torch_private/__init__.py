"""Every private name of PyTorch that the package uses. Nothing else imports any.

PyTorch may change these without notice. `names.py` says of each with which versions it was tried and what
happens where it is missing. `dynamo.py` and `inductor.py` import much; the other modules do not.
"""
