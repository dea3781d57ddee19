"""The learned model of measured latency: measurements, fitting, evaluation."""
