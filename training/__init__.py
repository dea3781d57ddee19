"""Training of the agent: graphs, collection, PPO, search distillation, world models, `retrain.py`."""
