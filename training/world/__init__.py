"""World models of rewriting, and the agents trained in imagination."""
