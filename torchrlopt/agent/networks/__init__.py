"""The networks: encoders of graphs and substitutions, policy and value heads."""
