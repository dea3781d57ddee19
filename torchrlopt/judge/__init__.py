"""Verifies rewritten graphs and decides what is faster: tolerances, float64 references, noise, timing."""
