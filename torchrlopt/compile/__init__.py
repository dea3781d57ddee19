"""The torch.compile backend: runs all stages, checks the result, and chooses by measurement."""
