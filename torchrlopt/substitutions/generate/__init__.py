"""The generator of substitutions: enumerate, pair, test, prune, generalise, emit."""
