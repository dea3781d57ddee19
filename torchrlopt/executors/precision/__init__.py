"""Calls of a lowered graph in lower precision."""
