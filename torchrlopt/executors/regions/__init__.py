"""Graphs of which an executor takes parts: which parts, whether they pay, and what runs them."""
