"""The command line `torchrlopt`: `app` defines its commands, the other files implement them."""

from torchrlopt.api.cli.app import main

__all__ = ["main"]
