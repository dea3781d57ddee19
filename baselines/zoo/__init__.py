"""Architectures of the suite and of the collection that are written here, one family a file."""
