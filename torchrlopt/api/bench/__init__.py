"""Times a model in everything that is installed, for `torchrlopt bench`."""
