"""Kernels of oneDNN with packed weights in the place of ATen calls."""
