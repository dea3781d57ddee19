"""Collectors: who plays the episodes of an update, by one contract, in this process or on a cluster."""
