"""The device that is trained for: what it costs, as numbers, and how that is measured."""
