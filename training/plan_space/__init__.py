"""Which further substitutions would give a search something to win that greedy search does not see."""
