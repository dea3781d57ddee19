"""This machine: what it is, what it costs, and how that is measured."""
