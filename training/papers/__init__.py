"""The papers' experiments: runs with stored results, and the figures and tables drawn from them."""
