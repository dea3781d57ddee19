"""`torchrlopt substitutions ...`: the commands about the library."""

from __future__ import annotations

import typer

from torchrlopt.api.cli.library import explain, list_, show
from torchrlopt.api.cli.prove import check, prove

app = typer.Typer(no_args_is_help=True, help="The substitution library.")
app.command(name="list")(list_)
app.command()(show)
app.command()(explain)
app.command()(check)
app.command()(prove)
