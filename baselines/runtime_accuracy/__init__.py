"""How exact the operators of each runtime are."""
