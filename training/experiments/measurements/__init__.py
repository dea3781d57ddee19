"""How many measurements each row needs where a reward is a measured latency: the dissertation's question."""
