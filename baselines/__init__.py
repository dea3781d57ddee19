"""The suite of models torchrlopt is measured on, and the comparison with its peers."""
