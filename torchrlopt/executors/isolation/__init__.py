"""Runs what a runtime does for the first time in a separate process, which may crash."""
