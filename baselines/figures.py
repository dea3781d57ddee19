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
from baselines.models import GROUPS
from baselines.shared.tables import markdown, of, read

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


def _groups(frame: pd.DataFrame) -> pd.DataFrame:
    """The speed-up of torchrlopt in each group of models, and what it costs; one setting."""
    ratios = compare.speed_ups(frame).drop(columns=compare.BASE)
    (peer,) = ratios.columns
    own = of(frame, peer=peer).pivot_table(index="model", columns="metric", values="value")
    memory = own["peak memory"] / of(frame, peer=compare.BASE, metric="peak memory").set_index("model").value
    rows = []
    for group, names in [*GROUPS.items(), ("all", tuple(ratios.index))]:
        gain, costs = ratios[peer].reindex(names).dropna(), own.reindex(names)
        rows.append({
            "group": group, "models": len(gain), "geometric mean": f"{compare.geometric_mean(gain):.2f}x",
            "least": f"{gain.min():.2f}x", "most": f"{gain.max():.2f}x",
            "at least 1.1x": f"{(gain >= 1.1).mean():.0%}",
            "first call, median": f"{costs['first call'].median():.1f} s",
            "peak memory, median": f"{memory.reindex(names).median():.2f}x",
            "largest error": f"{costs['rms error'].max():.0e}",
        })  # fmt: skip
    return pd.DataFrame(rows)


TABLES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "decode": calls.decode_table,
    "groups": _groups,
    "means": _means,
    "split": split.table,
}


if __name__ == "__main__":
    typer.run(main)
