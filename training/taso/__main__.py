"""Reads the substitutions that TASO was released with: `python -m training.taso graph_subst.pb`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torchrlopt.substitutions.proof.layers import require_z3
from training.progress import progress_bar
from training.taso.library import Reading, library_of, read_all
from training.taso.rule_file import read_rules


def main(
    file: Annotated[Path, typer.Argument(help="`graph_subst.pb` of TASO's repository.")],
    out: Annotated[Path, typer.Option(help="Library to write.")] = Path("runs/taso/rules.txt"),
    first: Annotated[int | None, typer.Option(min=1, help="Only so many rules.")] = None,
) -> None:
    """Read TASO's substitutions into our notation, test and prove each; a run goes on where it was left."""
    require_z3()
    rules = read_rules(file)[:first]
    out.parent.mkdir(parents=True, exist_ok=True)
    readings: list[Reading] = []
    with progress_bar() as progress:
        bar = progress.add_task("rules", total=len(rules))
        for reading in read_all(rules, out.with_suffix(".jsonl")):
            readings.append(reading)
            progress.update(bar, description=reading.name, advance=not reading.name.endswith("_linear"))
    out.write_text(library_of(readings), encoding="utf-8")
    console = Console(soft_wrap=True)
    for is_linear, what in ((False, "rules"), (True, "of them as linear layers")):
        own = [each for each in readings if each.name.endswith("_linear") == is_linear]
        counts = Counter(each.outcome for each in own)
        console.print(f"{len(own)} {what}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    for each in readings:
        if each.outcome != "proved":
            console.print(f"{each.name} {each.outcome}: {each.reason}", markup=False, highlight=False)
    console.print(out)


if __name__ == "__main__":
    typer.run(main)
