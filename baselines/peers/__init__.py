"""The peers of the comparison, each in a separate process."""
