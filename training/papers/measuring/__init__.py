"""Rows that measure graphs: how many measurements each needs."""
