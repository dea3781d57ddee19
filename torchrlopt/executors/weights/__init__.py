"""Expressions over weights: split off from a graph and evaluated once per set of weights."""
