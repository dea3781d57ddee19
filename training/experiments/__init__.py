"""The papers' experiments: what runs they need, and what is drawn and said of the results."""
