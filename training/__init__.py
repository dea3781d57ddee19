"""Training of the agent: graphs, episode collection, PPO, search distillation, world models, `retrain.py`."""
