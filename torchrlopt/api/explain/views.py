"""The result of `explain`: which rewrites each executor gains from, and what it does by itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchrlopt.errors import OptionsError
from torchrlopt.executor_table import BASELINE
from torchrlopt.report import LeftOut, Report
from torchrlopt.report.search import finder_in_words

_NOTHING_MS = 0.0005  # smaller values are shown as 0.000


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """One substitution in the plan for an executor.

    Attributes:
        substitution: its name in the library.
        count: how often the plan applies it.
        gain_ms: predicted time that all these steps save, in milliseconds. Negative for one that pays only
            through later steps.
        proof: whether the substitution is "proved", or only "tested".
        meaning: what it does, in words, as reports group steps.
    """

    substitution: str
    count: int
    gain_ms: float
    proof: str = ""
    meaning: str = ""


@dataclasses.dataclass(frozen=True)
class ExecutorView:
    """One graph as one executor sees it.

    Attributes:
        executor: its name.
        cost_before_ms: predicted time of the original graph, in milliseconds.
        cost_after_ms: predicted time of the rewritten graph, in milliseconds.
        rewrites: the plan for this executor, the largest gain first.
        needless: rewrites of the plan for eager PyTorch that save no predicted time here, applied in the same
            order: the executor does the same by itself, or what they save costs it nothing.
        prices: its prices that differ from eager PyTorch's.
        differences: the same in words.
        found_by: what found the plan, see `SearchRecord`.
        left_out: what each group of rewrites is worth; eager only, if requested.
        packed: kernels with pre-packed weights, counted by what they compute; eager only.
        plain: convolutions, linears, products and attentions that stay ATen's, counted; eager only.
        to_channels_last: copies into the layout of packed convolutions; eager only.
        restored: copies back into the original layout; eager only.
        reason: why the executor cannot run the graph; None if it can.
    """

    executor: str
    cost_before_ms: float
    cost_after_ms: float
    rewrites: tuple[Rewrite, ...] = ()
    needless: tuple[Rewrite, ...] = ()
    prices: dict[str, float] = dataclasses.field(default_factory=dict)
    differences: tuple[str, ...] = ()
    found_by: str = ""
    left_out: tuple[LeftOut, ...] = ()
    packed: dict[str, int] = dataclasses.field(default_factory=dict)
    plain: dict[str, int] = dataclasses.field(default_factory=dict)
    to_channels_last: int = 0
    restored: int = 0
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class GraphView:
    """One graph of the model.

    Attributes:
        num_nodes: operators that run in every call, before any rewrite.
        opaque: operators without a translation.
        device: of its tensors.
        executors: one view for each available executor; empty if the graph is left alone.
        reason: why the graph is left alone; None if it is not.
    """

    num_nodes: int
    opaque: tuple[str, ...]
    device: str
    executors: tuple[ExecutorView, ...]
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What the rewriter would do for each executor; `print` shows it as tables.

    Attributes:
        graphs: the graphs of the model, in the order in which they are encountered.
        reports: of the plans, by executor, one for each planned graph; not in the JSON.
        measured: of the optimised model, with the option `measure`; None without it.
    """

    graphs: tuple[GraphView, ...]
    reports: Mapping[str, Sequence[Report]] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )
    measured: Report | None = None

    def to_json(self) -> str:
        """Return everything as a JSON object."""
        found: dict[str, Any] = {"graphs": [dataclasses.asdict(graph) for graph in self.graphs]}
        if self.measured is not None:
            found["measured"] = json.loads(self.measured.to_json())
        return json.dumps(found, indent=2)

    def save(self, path: str | Path, executor: str | None = None, title: str = "") -> None:
        """Write one plan as an HTML page, see `Report.save`.

        Args:
            path: of the page; it is overwritten.
            executor: whose plan; None for the measured one, or for eager PyTorch's if none was measured.
            title: of the page, such as the model's name.

        Raises:
            OptionsError: there is no plan for this executor.
        """
        if executor is None and self.measured is not None:
            self.measured.save(path, title)
            return
        executor = executor or BASELINE
        if executor not in self.reports:
            raise OptionsError(
                "there is no plan for this executor",
                expected=f"one of {', '.join(self.reports)}" if self.reports else "a graph that is planned",
                got=executor,
            )
        Report.merged(self.reports[executor]).save(path, title)

    def __str__(self) -> str:
        # rich is slow to import, and most explanations are of one model
        from torchrlopt.console import text_of

        parts: list[object] = [] if self.measured is None else [str(self.measured)]
        for number, graph in enumerate(self.graphs, 1):
            name = f"graph {number} of {len(self.graphs)}: " if len(self.graphs) > 1 else ""
            parts.append(f"{name}{graph.num_nodes} operators on {graph.device}")
            if graph.opaque:
                parts.append(f"left alone: {', '.join(graph.opaque)}")
            if graph.reason is not None:
                parts.append(f"the whole graph is left alone: {graph.reason}")
            parts += map(_table, graph.executors)
        return text_of(*parts, width=110)


def _table(view: ExecutorView) -> object:
    """Format one executor's view as a rich table."""
    from rich.table import Table

    table = Table(title=view.executor, show_header=False, title_justify="left", min_width=80)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(view):
        table.add_row(name, text)
    return table


def _rows(view: ExecutorView) -> list[tuple[str, str]]:
    """Return names and texts of a table."""
    before, after = view.cost_before_ms, view.cost_after_ms
    less = f", {1 - after / before:.0%} less" if view.rewrites and before > 0 else ""
    finder = (
        f"; the plan was found by {finder_in_words(view.found_by)}" if view.found_by and view.rewrites else ""
    )
    rows = [("predicted", f"{before:.3f} -> {after:.3f} ms{less}{finder}")]
    if view.reason is not None:
        rows.append(("cannot run it", view.reason))
    by_meaning: dict[str, list[Rewrite]] = {}
    for each in view.rewrites:
        by_meaning.setdefault(each.meaning, []).append(each)
    for meaning, rewrites in by_meaning.items():
        rows += _listed(meaning, [_describe(each) for each in rewrites])
    if not view.rewrites:
        rows.append(("rewrites", "none"))
    rows += _listed("worth", [str(each) for each in view.left_out])
    rows += _listed("brings nothing", [f"{each.count} x {each.substitution}" for each in view.needless])
    rows += _listed("its prices", view.differences)
    rows += _listed("packed", [f"{count} x {name}" for name, count in view.packed.items()])
    rows += _listed("plain", [f"{count} x {name}" for name, count in view.plain.items()])
    if view.packed:
        rows.append(("copies", f"{view.to_channels_last} to channels_last, {view.restored} back"))
    return rows


def _describe(rewrite: Rewrite) -> str:
    """Describe a rewrite in one line."""
    if abs(rewrite.gain_ms) < _NOTHING_MS:
        gain = "no difference by itself"
    else:
        gain = f"{abs(rewrite.gain_ms):.3f} ms {'less' if rewrite.gain_ms > 0 else 'more'}"
    mark = f" ({rewrite.proof} only)" if rewrite.proof not in ("", "proved") else ""
    return f"{rewrite.count} x {rewrite.substitution}{mark}: {gain}"


def _listed(name: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return rows for the texts; only the first has the name."""
    return [(name if at == 0 else "", text) for at, text in enumerate(texts)]
