"""The agent: its observations, its networks, and the search that it guides. Pure torch at run time.

Shape letters: B episodes, T time, N nodes, E edges, C candidates, M node references of candidates, S
substitutions, L locations, W width, Z latent, H hidden, K mixtures or bins.
"""
