"""Episodes to learn from: played, collected by processes, shown by a search; all drawn by key."""
