"""Learning: PPO, imitation of the best episodes, the encoder and the data of the world models."""
