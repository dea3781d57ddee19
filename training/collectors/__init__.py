"""Collectors: workers that play the episodes of an update, in this process or in several."""
