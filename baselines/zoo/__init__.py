"""Architectures of the suite, one family a file; `baselines.models` names, seeds and builds them."""
