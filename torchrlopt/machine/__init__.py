"""This machine: its description, its cost model, and the measurements behind it."""
