"""Searches that only rows of training use."""
