"""Expressions over weights: split off a graph, evaluated once for each set of weights."""
