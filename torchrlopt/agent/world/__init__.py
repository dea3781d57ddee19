"""World models of rewriting, and the agents that are trained in their imagination."""
