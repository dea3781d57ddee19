"""The networks of the agent: an encoder of graphs, a memory of the episode, and a policy."""
