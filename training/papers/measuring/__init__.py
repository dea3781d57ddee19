"""Rows that learn from measured times: how many measurements each needs."""
