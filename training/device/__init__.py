"""The target device: its costs as numbers, and how they are measured."""
