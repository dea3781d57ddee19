"""The papers' experiments: runs whose results are kept, and the figures and tables drawn from them."""
