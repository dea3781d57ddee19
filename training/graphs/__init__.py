"""Graphs to train on: stacks of network blocks, drawn by key."""
