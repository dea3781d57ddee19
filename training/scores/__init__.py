"""How good what was learnt is, as numbers, tables and plots."""
