"""Episodes to learn from: played, as tasks of collectors, shown by a search; all drawn by key."""
