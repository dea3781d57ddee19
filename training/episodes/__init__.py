"""Episodes to learn from: played by policies, as collector tasks, or shown by a search; all drawn by key."""
