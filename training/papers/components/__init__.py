"""Components of training: their inputs and outputs, and how each row is composed of them."""
