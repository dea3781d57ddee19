"""What `explain` has found: which rewrites each executor gains from, and what it does without them."""

from __future__ import annotations

import dataclasses
import io
import json


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """One substitution in the plan for an executor.

    Attributes:
        substitution: its name in the library.
        count: how often the plan applies it.
        gain_ms: what all these steps take off the predicted time, in milliseconds. Negative for one that
            pays only by what it makes possible.
    """

    substitution: str
    count: int
    gain_ms: float


@dataclasses.dataclass(frozen=True)
class ExecutorView:
    """One graph as one executor sees it.

    Attributes:
        executor: its name.
        cost_before_ms: predicted time of the original graph, in milliseconds.
        cost_after_ms: predicted time of the rewritten graph, in milliseconds.
        rewrites: the plan for this executor, the largest gain first.
        needless: rewrites of the plan for eager PyTorch that take nothing off the predicted time here,
            applied in the same order: the executor does the same by itself, or does not pay for it.
        prices: how its prices differ from eager PyTorch's, as far as they do.
        packed: kernels with pre-packed weights, by what they compute, counted; eager only.
        plain: convolutions, linears, products and attentions that stay ATen's, counted; eager only.
        to_channels_last: copies into the layout of packed convolutions; eager only.
        restored: copies back into the original layout; eager only.
        reason: why the executor cannot run the graph; None where it can.
    """

    executor: str
    cost_before_ms: float
    cost_after_ms: float
    rewrites: tuple[Rewrite, ...] = ()
    needless: tuple[Rewrite, ...] = ()
    prices: dict[str, float] = dataclasses.field(default_factory=dict)
    packed: dict[str, int] = dataclasses.field(default_factory=dict)
    plain: dict[str, int] = dataclasses.field(default_factory=dict)
    to_channels_last: int = 0
    restored: int = 0
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class GraphView:
    """One graph of the model.

    Attributes:
        num_nodes: operators that run at every call, before any rewrite.
        opaque: operators without a translation.
        device: where its tensors are.
        executors: one view for each executor that is there; empty where the graph is left alone.
        reason: why the graph is left alone; None where it is not.
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
        graphs: the graphs of the model, in the order in which they are met.
    """

    graphs: tuple[GraphView, ...]

    def to_json(self) -> str:
        """All of it as a JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def __str__(self) -> str:
        # rich is slow to import, and most explanations are of one model
        from rich.console import Console

        out = io.StringIO()
        console = Console(file=out, width=110)
        for number, graph in enumerate(self.graphs, 1):
            name = f"graph {number} of {len(self.graphs)}: " if len(self.graphs) > 1 else ""
            console.print(f"{name}{graph.num_nodes} operators on {graph.device}", highlight=False)
            if graph.opaque:
                console.print(f"left alone: {', '.join(graph.opaque)}", highlight=False)
            if graph.reason is not None:
                console.print(f"the whole graph is left alone: {graph.reason}", highlight=False)
            for view in graph.executors:
                console.print(_table(view))
        return out.getvalue().rstrip()


def _table(view: ExecutorView) -> object:
    """One executor's view as a table of rich."""
    from rich.table import Table

    table = Table(title=view.executor, show_header=False, title_justify="left", min_width=80)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(view):
        table.add_row(name, text)
    return table


def _rows(view: ExecutorView) -> list[tuple[str, str]]:
    """Names and texts of a table."""
    rows = [("predicted", f"{view.cost_before_ms:.3f} -> {view.cost_after_ms:.3f} ms")]
    if view.reason is not None:
        rows.append(("cannot run it", view.reason))
    rows += _listed("rewrites", view.rewrites) or [("rewrites", "none")]
    rows += _listed("brings nothing", view.needless)
    if view.prices:
        rows.append(("prices", ", ".join(f"{name} {value:g}" for name, value in view.prices.items())))
    rows += [
        ("packed" if not at else "", f"{n} x {name}") for at, (name, n) in enumerate(view.packed.items())
    ]
    rows += [("plain" if not at else "", f"{n} x {name}") for at, (name, n) in enumerate(view.plain.items())]
    if view.packed:
        copies = f"{view.to_channels_last} copies to channels_last, {view.restored} back"
        rows.append(("layout", copies))
    return rows


def _listed(name: str, rewrites: tuple[Rewrite, ...]) -> list[tuple[str, str]]:
    return [
        (name if at == 0 else "", f"{each.count} x {each.substitution} ({-each.gain_ms:+.3f} ms)")
        for at, each in enumerate(rewrites)
    ]
