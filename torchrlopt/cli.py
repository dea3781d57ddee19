"""The command line: `torchrlopt optimise-onnx`, `torchrlopt substitutions ...`, `torchrlopt version`."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from torchrlopt import cli_substitutions
from torchrlopt.errors import OptionsError, RlOptError
from torchrlopt.optimise import optimise_onnx as rewrite

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Rewrite models by proven substitutions.")
app.add_typer(cli_substitutions.app, name="substitutions")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(metadata.version("torchrlopt"))


@app.command()
def optimise_onnx(
    path_in: Annotated[Path, typer.Argument(help="The ONNX model.", exists=True, dir_okay=False)],
    path_out: Annotated[Path, typer.Argument(help="Where the rewritten model goes.", dir_okay=False)],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", help="name=value of an option, such as searcher=beam; may be repeated."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Rewrite an ONNX file; the result holds standard operators only."""
    report = rewrite(path_in, path_out, **_parsed(option or []))
    typer.echo(report.to_json() if as_json else str(report))


def _parsed(assignments: list[str]) -> dict[str, Any]:
    """Options from `name=value` texts: values are read as JSON where they are JSON, else as text."""
    options: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise OptionsError("an option has no value", expected="name=value", got=assignment)
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def main() -> None:
    """Run the command line; errors of ours end in one line and exit status 1."""
    try:
        app()
    except RlOptError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
