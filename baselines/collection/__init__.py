"""Architectures that people use, small and with random weights, and what torch.compile makes of them."""
