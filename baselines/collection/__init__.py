"""Small versions of popular architectures with random weights, and how torch.compile handles them."""
