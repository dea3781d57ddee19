"""`torchrlopt`, and `python -m torchrlopt` for use when the script is not on the path."""

from __future__ import annotations

import sys

from torchrlopt import __version__


def main() -> None:
    """Run the command line; print the version at once, without waiting for PyTorch."""
    if sys.argv[1:] in (["version"], ["--version"]):
        print(__version__)
        return
    from torchrlopt.api.cli.app import main as run  # heavy

    run()


if __name__ == "__main__":
    main()
