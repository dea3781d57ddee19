"""The eager executor: PyTorch itself, with packed kernels and passes over the graph."""
