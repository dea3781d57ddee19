"""Components of training: what each takes and gives, and how each row is composed of them."""
