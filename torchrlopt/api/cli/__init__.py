"""The command line `torchrlopt`: `app` has its commands, the other files what they do."""

from torchrlopt.api.cli.app import main

__all__ = ["main"]
