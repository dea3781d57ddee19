"""Learned models of how long a graph runs on an executor."""
