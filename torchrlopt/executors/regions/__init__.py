"""Runs parts of a graph in an executor: which parts, whether that is faster, and what runs them."""
