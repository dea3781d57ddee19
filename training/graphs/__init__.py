"""Graphs to train on: blocks of networks, drawn and stacked by key."""
