"""The benchmark suite of torchrlopt, and the comparison with its peers."""
