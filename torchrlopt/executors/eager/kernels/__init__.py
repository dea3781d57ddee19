"""Kernels that replace ATen calls: our own, and packed or fused ones of oneDNN, cuDNN and cuBLAS."""
