"""Other libraries' training loops, on the environments and networks of this package."""
