"""Kernels in the place of ATen calls: our own, and packed or fused ones of oneDNN, cuDNN and cuBLAS."""
