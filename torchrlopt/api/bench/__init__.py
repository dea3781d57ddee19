"""Times a model in everything that is installed: what `torchrlopt bench` does."""
