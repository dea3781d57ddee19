"""Regenerates the tables in the documentation from the committed results: `make figures`.

A table stands between two lines, the first of which describes it:

    <!-- figures: compare cpu_batch1_float32_zen4 -->
    <!-- end -->

The words are a name in `TABLES`, files of `baselines/results/` without their extension, and settings
NAME=VALUE, whose values use "_" for spaces.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from baselines import calls, compare, kernels, prices, search, split
from baselines.shared import gap_closed
from baselines.shared.tables import markdown, of, read

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "baselines" / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_PLACE = re.compile(r"(<!-- figures: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

#: Column titles of summaries, and the peers that they show.
_PEERS = {
    "inductor": "inductor",
    "inductor, freezing": "inductor_freezing",
    "ONNX Runtime": "onnxruntime",
    "OpenVINO": "openvino",
    "torchrlopt, `eager`, frozen": "torchrlopt/eager/frozen",
    "torchrlopt, `auto`, frozen": "torchrlopt/auto/frozen",
}


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
    kind, *rest = shlex.split(words)
    settings = dict(word.replace("_", " ").split("=") for word in rest if "=" in word)
    paths = [RESULTS / f"{word}.csv" for word in rest if "=" not in word]
    if kind == "summary":
        return markdown(summary(paths))
    return markdown(TABLES[kind](read(*paths), **settings))


def summary(paths: list[Path]) -> pd.DataFrame:
    """Geometric means of the speed-up over eager PyTorch, one row per file."""
    frames = {}
    for path in paths:
        frame = read(path)
        first = frame.iloc[0]
        threads = "one thread" if first["threads"] == 1 else f"{first['threads']:.0f} threads"
        machine = first["machine"].partition(", 2 cores")[0]
        setting = f"{first['dtype']}, batch {first['batch']:.0f}, {threads}"
        frames[f"{setting}, {machine}, {first['commit']}"] = frame
    return compare.summary(frames, _PEERS)


def _default_options(frame: pd.DataFrame) -> pd.DataFrame:
    """Speed-up and first call by default and with max-autotune."""
    ratios = compare.speed_ups(frame)
    first = of(frame, metric="first call")
    rows = []
    for title, peer in (
        ("default options", "torchrlopt/eager"),
        ('`mode="max-autotune"`', "torchrlopt/auto"),
    ):
        own, seconds = ratios[peer], of(first, peer=peer).value
        rows.append({
            "": title,
            "speed-up over eager PyTorch": (
                f"{compare.geometric_mean(own):.2f}x ({own.min():.2f} to {own.max():.2f})"
            ),
            "first call": f"{seconds.min():.0f} to {seconds.max():.0f} s",
        })  # fmt: skip
    return pd.DataFrame(rows)


def _without_costs(frame: pd.DataFrame) -> pd.DataFrame:
    return compare.table(frame, with_costs=False)


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    """The geometric means of a comparison, with the smallest and the largest."""
    ratios = compare.speed_ups(frame).drop(columns=compare.BASE)
    every = pd.concat([ratios, compare.gains_of_plans(ratios)], axis=1)
    rows = [
        (name, f"{compare.geometric_mean(own):.2f}x", f"{own.min():.2f}x", f"{own.max():.2f}x")
        for name, own in every.items()
    ]
    return pd.DataFrame(rows, columns=["peer", "geometric mean", "least", "most"])


def _by_hand(frame: pd.DataFrame) -> pd.DataFrame:
    """float16 in torchrlopt against the same models converted to float32 by hand, from two runs."""
    calls_ms = of(frame, metric="call").pivot_table(index="model", columns=["dtype", "peer"], values="value")
    own = calls_ms["float32", "eager"] / calls_ms["float16", "torchrlopt/eager"]
    mean = f"{compare.geometric_mean(own):.2f}x"
    shown = pd.DataFrame({"model": own.index, "over float32 in eager PyTorch": own.map("{:.2f}x".format)})
    return pd.concat([shown, pd.DataFrame([["**geomean**", f"**{mean}**"]], columns=list(shown))])


def _variants(frame: pd.DataFrame) -> pd.DataFrame:
    return prices.variant_table(frame, by_model=False)


TABLES: dict[str, Callable[..., pd.DataFrame]] = {
    "compare": compare.table,
    "speed-ups": _without_costs,
    "means": _means,
    "default-options": _default_options,
    "by-hand": _by_hand,
    "first-calls": calls.first_table,
    "overhead": calls.overhead_table,
    "decode": calls.decode_table,
    "kernels": kernels.table,
    "split": split.table,
    "variants": _variants,
    "regions": prices.region_table,
    "plans": prices.plan_table,
    "rivals": search.rival_table,
    "families": search.family_table,
    "searchers": search.close_table,
    "library": search.library_table,
    "gap-closed": gap_closed.table_of,
}


if __name__ == "__main__":
    typer.run(main)
