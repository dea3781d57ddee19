"""The record that planning keeps for the report page: the original graph, the steps and the prices.

The steps are replayed lazily, when the page is drawn. Until then the record holds one core graph, which has
no tensors, and two numbers per operator.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from torchrlopt import _C
from torchrlopt.onnx.opsets import ATEN_DOMAIN
from torchrlopt.report import Drawing, DrawnStep, Operator, Source
from torchrlopt.report.drawing import DrawnGraph, Price
from torchrlopt.substitutions import load_library

_PROOFS = {"z3": "proved", "evaluation": "tested"}
_MAX_TEXT = 120  # characters of an attribute


@dataclasses.dataclass(frozen=True)
class Priced:
    """Prices of one graph.

    Attributes:
        times_us: predicted times of its nodes in topological order, in microseconds.
        are_measured: 1 if the time was measured, by node.
        work: see `DrawnGraph`.
    """

    times_us: array[float]
    are_measured: bytes
    work: Mapping[str, float]


def priced(graph: _C.Graph, cost: _C.CostModel) -> Priced:
    """Return the prices of a graph."""
    order = graph.topological_order()
    work = cost.metrics(graph)
    return Priced(
        array("d", (cost.node(graph, id_)["time_us"] for id_ in order)),
        bytes(cost.is_measured(graph, id_) for id_ in order),
        {name: work[name] for name in ("flops", "bytes", "peak_bytes", "launches")},
    )


@dataclasses.dataclass(frozen=True)
class PlanRecord:
    """See `torchrlopt.report.drawing.Record`.

    `sources` and `labels` say where the user wrote the nodes of `graph`, and what its inputs are called
    there.
    """

    graph: _C.Graph
    steps: tuple[tuple[str, int], ...]
    before: Priced
    after: Priced
    sources: Mapping[str, Source]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def draw(self) -> Drawing:
        """Replay the steps and record what each one changes."""
        replay = _Replay(self.graph)
        before = _drawn(replay, self.before)
        keys = {each.name: each.key for each in before.operators if each.name}
        sources = {keys[name]: source for name, source in self.sources.items() if name in keys}
        steps = tuple(replay.step(name, location) for name, location in self.steps)
        labels = {keys[name]: label for name, label in self.labels.items() if name in keys}
        return Drawing(before, _drawn(replay, self.after), steps, replay.origins, sources, labels)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the drawing instead, because a core graph supports neither."""
        return (Drawn, (self.draw(),))


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A record that has been drawn."""

    drawing: Drawing

    def draw(self) -> Drawing:
        """The drawing."""
        return self.drawing


class _Replay:
    """A graph while the steps are replayed."""

    def __init__(self, graph: _C.Graph) -> None:
        self._library = load_library()
        self._graph = graph
        self.order = graph.topological_order()
        self.operators = {key: _operator(graph, key) for key in self.order}
        self.outputs = _providers(graph)
        self.origins: dict[int, tuple[int, ...]] = {key: (key,) for key in self.order}

    def step(self, name: str, location: int) -> DrawnStep:
        """Apply a substitution and return what it changed."""
        old = self.operators
        graph = self._library.apply(self._graph, name, location)
        order = graph.topological_order()
        alive = set(order)
        gone = {key for key in self.order if key not in alive}
        # Readers of removed nodes have new inputs; no other node has changed.
        fresh = [key for key in order if key not in old or gone.intersection(old[key].inputs)]
        new = {key: old[key] for key in order if key in old} | {key: _operator(graph, key) for key in fresh}
        removed = tuple(old[key] for key in self.order if key in gone)
        added = tuple(new[key] for key in order if key not in old)
        outputs = _providers(graph)
        rewired = [key for key in fresh if key in old]
        left = {each for key in rewired for each in old[key].inputs} | set(self.outputs)
        taken = {each for key in rewired for each in set(new[key].inputs) - set(old[key].inputs)}
        taken |= {now for was, now in zip(self.outputs, outputs, strict=True) if now != was}
        origins = tuple(sorted({key for each in removed for key in self.origins[each.key]}))
        self.origins |= dict.fromkeys((each.key for each in added), origins)
        read = {key for each in (*removed, *added) for key in each.inputs} | taken
        around = {key: old[key] for key in read if key in old and key not in gone}
        self._graph, self.order, self.operators, self.outputs = graph, order, new, outputs
        return DrawnStep(
            name,
            _first_sentences(self._library.doc(name)),
            proof_of(self._library, name),
            removed,
            added,
            around,
            tuple(sorted(gone & left)),
            tuple(sorted(taken)),
        )


def proof_of(library: _C.Library, name: str) -> str:
    """Return how a substitution is verified: "proved", "tested" or "assumed"."""
    return _PROOFS.get(library.proof(name).partition(" ")[0], "assumed")


def _providers(graph: _C.Graph) -> list[int]:
    return [value[0] for value in graph.outputs if value is not None]


def _operator(graph: _C.Graph, key: int) -> Operator:
    node = graph.node(key)
    op = str(node["op"])
    attributes = dict(node["attrs"])
    is_leaf = op in ("Input", "Weight", "Constant")
    is_opaque = op == "Opaque"
    if is_opaque:
        op = str(attributes.pop("op")).partition("#")[0].removeprefix(f"{ATEN_DOMAIN}::")
    return Operator(
        key,
        op,
        _attributes(attributes.items()),
        tuple(value[0] for value in node["inputs"] if value is not None),
        tuple(_type(each) for each in node["types"]),
        str(node["name"]),
        bool(node["is_static"]),
        is_leaf,
        is_opaque,
    )


def _attributes(items: Iterable[tuple[str, Any]]) -> str:
    """Return the attributes that are set, as text of limited length."""
    text = ", ".join(f"{name}={value}" for name, value in items if value not in ("", [], None))
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _type(given: _C.TensorType) -> str:
    dtype, dims = given
    return f"{dtype}[{', '.join(map(str, dims))}]" if dims is not None else f"{dtype}[?]"


def _first_sentences(doc: str) -> str:
    """Return the description of a substitution, without machine-readable markers."""
    lines = [line.strip(" -") for line in doc.splitlines() if line.strip() not in ("", "composite")]
    return " ".join(lines)


def _drawn(replay: _Replay, prices: Priced) -> DrawnGraph:
    """Return the current graph."""
    operators = tuple(replay.operators[key] for key in replay.order)
    by_key = {
        each.key: Price(time_us, bool(is_measured))
        for each, time_us, is_measured in zip(operators, prices.times_us, prices.are_measured, strict=True)
        if not each.is_leaf and not each.is_static
    }
    return DrawnGraph(operators, tuple(replay.outputs), by_key, prices.work)
