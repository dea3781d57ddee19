"""Architectures of the suite and of the collection that are implemented here, one file per family."""
