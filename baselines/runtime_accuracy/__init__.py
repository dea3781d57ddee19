"""Numerical accuracy of the operators of each runtime."""
