"""The eager executor: PyTorch itself, with packed kernels and graph passes."""
