"""The search that an agent guides."""
