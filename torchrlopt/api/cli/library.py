"""`torchrlopt substitutions list | show | explain`: what the library contains, and where it matches."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from torchrlopt import _C
from torchrlopt.api.cli.models import HELP, load_graph
from torchrlopt.console import Console
from torchrlopt.errors import OptionsError
from torchrlopt.plain_text import printable
from torchrlopt.substitutions import fires, load_library
from torchrlopt.substitutions.picture import draw
from torchrlopt.substitutions.proof.records import axioms_hash, read_record, state_of

_PLAIN_WIDTH = 110


def named(library: _C.Library, name: str) -> str:
    """Return the name if the library has it.

    Raises:
        OptionsError: it does not; the message suggests similar names.
    """
    if library.find(name) < 0:
        near = difflib.get_close_matches(name, library.names, n=3, cutoff=0.5)
        raise OptionsError(
            f"no substitution named {name!r}",
            todo=f"did you mean {' or '.join(near)}?" if near else "torchrlopt substitutions list",
        )
    return name


def rows(library: _C.Library) -> list[dict[str, Any]]:
    """Return one row per substitution, in library order."""
    counts, axioms = fires(), axioms_hash()
    return [
        {
            "name": name,
            "family": library.family(name),
            "proof": state_of(library, name, axioms),
            "exact": library.is_exact(name),
            "fires": len(counts.get(name, ())),
        }
        for name in library.names
    ]


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    proof: Annotated[
        str | None, typer.Option(help="Only these: proved, tested, assumed, stale or unchecked.")
    ] = None,
) -> None:
    """List the substitutions: family, how each was checked, on how many suite models it fires.

    Example: torchrlopt substitutions list --family merge --json
    """
    found = rows(load_library(allow_assumed=True))
    for key, wanted in (("family", family), ("proof", proof)):
        if wanted is None:
            continue
        known = sorted({row[key] for row in found} | _KNOWN[key])
        if wanted not in known:
            near = difflib.get_close_matches(wanted, known, n=1)
            raise OptionsError(
                f"no {key} named {wanted!r}",
                expected=f"one of {', '.join(known)}",
                todo=f"did you mean {near[0]}?" if near else "",
            )
        found = [row for row in found if row[key] == wanted]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    table = Table("name", "family", "proof", "exact", "fires", box=None)
    for row in found:
        table.add_row(*("yes" if v is True else "" if v is False else str(v) for v in row.values()))
    console = _console()
    console.print(table)
    states = [row["proof"] for row in found]
    console.print(
        f"{len(found)} substitutions: "
        + ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states))),
        highlight=False,
    )


_KNOWN: dict[str, set[str]] = {
    "family": set(),
    "proof": {"proved", "tested", "assumed", "stale", "unchecked"},
}


def show(
    name: Annotated[str, typer.Argument(help="Of the substitution.")],
    svg: Annotated[Path | None, typer.Option(help="Draw it into this SVG file.", dir_okay=False)] = None,
    png: Annotated[Path | None, typer.Option(help="Draw it into this PNG file.", dir_okay=False)] = None,
) -> None:
    """Show one substitution: before => after, its conditions, how it was checked, where it fires.

    Example: torchrlopt substitutions show fuse_conv_relu --svg fuse_conv_relu.svg
    """
    library = load_library(allow_assumed=True)
    named(library, name)
    doc = library.doc(name)
    lines = [f"# {line}" for line in doc.splitlines()]
    lines += [line for line in library.text(name).splitlines() if not line.startswith("proof ")]
    typer.echo("\n".join(lines))
    record = read_record(library, name)
    models = fires().get(name, ())
    typer.echo("")
    typer.echo(f"family  {library.family(name)}")
    typer.echo(f"proof   {state_of(library, name, axioms_hash())}" + (f": {record}" if record else ""))
    typer.echo(f"exact   {'yes' if library.is_exact(name) else 'no'}")
    typer.echo(f"fires   {len(models)} models of the suite" + (f": {', '.join(models)}" if models else ""))
    for path in (svg, png):
        if path is not None:
            if path.suffix != (".svg" if path is svg else ".png"):
                raise OptionsError("the name does not fit the option", expected=".svg or .png", got=str(path))
            draw(library.text(name), path)


def explain(
    name: Annotated[str, typer.Argument(help="Of the substitution.")],
    model: Annotated[
        str,
        typer.Argument(help=HELP),
    ],
    planned: Annotated[bool, typer.Option(help="On the graph after the greedy plan.")] = False,
) -> None:
    """Show where a substitution matches in a model, and where it does not, how far the match got.

    Example: torchrlopt substitutions explain fuse_conv_relu model.onnx
    """
    library = load_library(allow_assumed=True)
    named(library, name)
    graph = load_graph(model)
    if planned:
        from torchrlopt.machine.cost import cost_model  # imports torch

        found = _C.search(graph, library, cost_model("eager"), budget_ms=60_000)
        used = sum(step[0] == name for step in found["steps"])
        typer.echo(f"the plan of {len(found['steps'])} steps uses it {used} times; on the graph behind it:")
        graph = found["graph"]
    typer.echo(printable(library.explain(graph, name)), nl=False)


def _console() -> Console:
    """A console of the terminal's width, or without a terminal, wide enough for one row per line."""
    return Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)
