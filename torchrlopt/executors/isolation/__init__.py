"""What a runtime does for the first time happens in a process of its own, which it may crash."""
