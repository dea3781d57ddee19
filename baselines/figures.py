"""Regenerates the tables in the documentation from the committed results: `make figures`.

A table stands between two lines, the first of which describes it:

    <!-- figures: means cpu_batch1_float32_zen4 -->
    <!-- end -->

The words are a name in `TABLES`, and files of `baselines/results/` without their extension.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from baselines import calls, compare, split
from baselines.shared.tables import markdown, read

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "baselines" / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_PLACE = re.compile(r"(<!-- figures: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail where a page is not up to date.")
    ] = False,
) -> None:
    """Write the tables of README.md and docs/ from the results.

    Example: python -m baselines.figures --check
    """
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        made = with_figures(text)
        if made != text:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(made, encoding="utf-8")
    if check and stale:
        typer.echo(f"out of date: {', '.join(stale)}; `make figures` writes them anew", err=True)
        raise typer.Exit(1)


def with_figures(text: str) -> str:
    """Regenerate the tables of a page.

    Raises:
        KeyError: there is no such table.
        typer.BadParameter: there is no such file.
    """
    return _PLACE.sub(lambda place: f"{place[1]}{figure(place[2])}\n{place[4]}", text)


def figure(words: str) -> str:
    """A Markdown table, from the words of its first line."""
    kind, *files = words.split()
    return markdown(TABLES[kind](read(*(RESULTS / f"{file}.csv" for file in files))))


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    """The geometric means of a comparison, with the smallest and the largest."""
    ratios = compare.speed_ups(frame).drop(columns=compare.BASE)
    every = pd.concat([ratios, compare.gains_of_plans(ratios)], axis=1)
    rows = [
        (name, f"{compare.geometric_mean(own):.2f}x", f"{own.min():.2f}x", f"{own.max():.2f}x")
        for name, own in every.items()
    ]
    return pd.DataFrame(rows, columns=["peer", "geometric mean", "least", "most"])


TABLES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "decode": calls.decode_table,
    "means": _means,
    "split": split.table,
}


if __name__ == "__main__":
    typer.run(main)
