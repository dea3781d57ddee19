"""Models with trained weights, and how well they do their task on inputs that were held out."""
