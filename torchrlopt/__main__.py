"""`python -m torchrlopt`: the command line, for use when the script `torchrlopt` is not on the path."""

from torchrlopt.api.cli.app import main

if __name__ == "__main__":
    main()
