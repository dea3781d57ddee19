"""`torchrlopt substitutions ...`: the commands about the library."""

from __future__ import annotations

import typer

from torchrlopt.cli_generate import generate

app = typer.Typer(no_args_is_help=True, help="The substitution library.")
app.command()(generate)
