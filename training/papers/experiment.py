"""Experiments: runs, the data kept from them, and what is drawn from these data alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchrlopt.storage.files import write_whole
from training.papers.runner import Result, Run, Scale
from training.papers.stats import interval

HERE = Path(__file__).parent
#: The papers' values, shown next to ours.
THEIRS: Mapping[str, Any] = json.loads((HERE / "theirs.json").read_text(encoding="utf-8"))

Runs = Mapping[Any, Run]
Results = Mapping[Any, Result]
Shown = tuple[Mapping[str, Figure], Mapping[str, Any]]
"""Pictures, named without the experiment's name, and the arguments of the template."""


@dataclasses.dataclass(frozen=True)
class Data:
    """The stored data of an experiment, from which its pictures and its section are made.

    Attributes:
        frames: tables by file name suffix; the main table has the suffix "".
        facts: single values by name.
    """

    frames: Mapping[str, pd.DataFrame]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def main(self) -> pd.DataFrame:
        """The table without a suffix."""
        return self.frames[""]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Attributes:
        title: of its section in the report.
        source: where in which paper.
        runs: the runs that it needs, by any keys.
        collect: computes the data from the results by these keys.
        show: draws the data.
        template: text of its section, in `templates/`.
        is_of_rows: whether it consists of trainings of rows.
        is_of_bert: whether the paper's values shown with it are those of its BERT.
        is_recorded: whether it has no runs and is only drawn from its committed data.
    """

    title: str
    source: str
    runs: Callable[[Scale], Runs]
    collect: Callable[[Results, Scale], Data]
    show: Callable[[Data], Shown]
    template: str
    is_of_rows: bool = False
    is_of_bert: bool = False
    is_recorded: bool = False


def recorded(title: str, source: str, show: Callable[[Data], Shown], template: str) -> Experiment:
    """An experiment that is not run any more: its data are the committed ones."""
    return Experiment(title, source, lambda *_: {}, lambda *_: Data({}), show, template, is_recorded=True)


def write(data: Data, name: str, folder: Path) -> None:
    """Write tables as CSV with six digits, facts as JSON."""
    for part, table in data.frames.items():
        path = folder / (f"{name}_{part}.csv" if part else f"{name}.csv")
        table.to_csv(path, index=False, float_format="%.6g", na_rep="nan")
    if data.facts:
        write_whole(folder / f"{name}.json", (json.dumps(data.facts, indent=1) + "\n").encode())


def load(name: str, folder: Path) -> Data:
    """Read data written by `write`.

    Raises:
        FileNotFoundError: there are none.
    """
    frames = {
        path.stem.removeprefix(name).removeprefix("_"): pd.read_csv(
            path, na_values=["nan"], keep_default_na=False
        )
        for path in [folder / f"{name}.csv", *sorted(folder.glob(f"{name}_*.csv"))]
    }
    facts = folder / f"{name}.json"
    return Data(frames, json.loads(facts.read_text(encoding="utf-8")) if facts.exists() else {})


def section(name: str, experiment: Experiment, data: Data, made: str, folder: Path) -> str:
    """Render the experiment's section of the report; save its pictures in the folder."""
    figures, context = experiment.show(data)
    for part, figure in figures.items():
        figure.savefig(folder / f"{name}{part}.png", dpi=80)
    plt.close("all")  # seaborn creates its figures in pyplot, which keeps them open
    loader = jinja2.FileSystemLoader(HERE / "templates")
    templates = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters |= {
        "table": markdown,
        "number": number,
        "percent": lambda share: f"{100 * share:.0f} %",
    }
    pictures = [f"{name}{part}.png" for part in figures]
    text = templates.get_template(f"{experiment.template}.md").render(
        facts=data.facts, pictures=pictures, **context
    )
    return f"## {name}: {experiment.title}\n\n{experiment.source}.\n\n{made}\n\n{text.strip()}\n"


def number(cell: Any) -> str:
    """Format with three significant digits; empty for what is not a number."""
    if isinstance(cell, float):
        return "" if cell != cell else f"{cell:.3g}"
    return str(cell)


def markdown(table: pd.DataFrame) -> str:
    """Format a table as Markdown."""
    rows = [[number(cell) for cell in row] for row in table.astype(object).itertuples(index=False)]
    lines = [[str(name) for name in table.columns], ["---"] * len(table.columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def frame(rows: Sequence[Sequence[Any]], *columns: str) -> pd.DataFrame:
    """Rows as a table."""
    return pd.DataFrame(list(rows), columns=list(columns))


def lines(data: pd.DataFrame, x: str, y: str, **given: Any) -> sns.FacetGrid:
    """Means over seeds with intervals; `col` gives each value its own panel, as in seaborn."""
    usual = {"errorbar": interval, "height": 3, "facet_kws": {"sharex": False, "sharey": False}}
    return sns.relplot(data, kind="line", x=x, y=y, linewidth=1, **{**usual, **given})


def bars(data: pd.DataFrame, x: str, y: str, **given: Any) -> sns.FacetGrid:
    """Bars side by side; axis labels are rotated if they would overlap."""
    grid = sns.catplot(
        data, kind="bar", x=x, y=y, **{"errorbar": None, "height": 3.5, "aspect": 1.6, **given}
    )
    if given.get("orient") != "h":
        grid.tick_params(axis="x", rotation=30, labelsize=8)
    return grid


def levels(panel: Axes, values: Mapping[str, float]) -> None:
    """Horizontal lines across a panel, each with a label."""
    for place, (label, value) in enumerate(values.items()):
        panel.axhline(value, color=f"C{7 + place}", linestyle=(":", "--", "-.")[place % 3], label=label)
    panel.legend(fontsize=6)
