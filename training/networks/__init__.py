"""The networks of training: candidate controllers, encoders of graphs and substitutions, value heads."""
