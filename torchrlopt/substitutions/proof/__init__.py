"""Proofs of substitutions over the real numbers, element by element; needs the extra `prove` (Z3)."""
