"""The learned model of measured latency: what is measured, how it is fitted, and how good it is."""
