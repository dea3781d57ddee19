"""A plan as it is drawn: operators before and after, what each step took away and what it put there.

Plain values, so that the page needs neither the C++ core nor the model. Who made the plan keeps a `Record`,
which is small, and draws it when somebody asks for the page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Source:
    """Where an operator comes from in the user's program.

    Attributes:
        file: as a module would be imported, such as "package/module.py"; empty where it is not known.
        line: from 1; 0 where it is not known.
        text: of that line.
        module: path of the `torch.nn.Module` that was running, such as "encoder.layer.0"; "" for the model.
    """

    file: str
    line: int
    text: str
    module: str = ""

    @property
    def place(self) -> str:
        """File and line; empty where they are not known."""
        return f"{self.file}:{self.line}" if self.file else ""


@dataclasses.dataclass(frozen=True)
class Operator:
    """One node of a graph.

    Attributes:
        key: of the node; one that survives a step keeps it.
        op: operator.
        attributes: what it is set to, as text.
        inputs: keys of the nodes whose results it reads; graph inputs and weights among them.
        types: of its results, such as "f32[1, 64, 56, 56]".
        name: in the graph that was captured; empty for what a substitution made.
        is_static: an expression over weights: evaluated once for each set of weights.
        is_leaf: an input, a weight or a constant.
        is_opaque: of an operator that the core does not know: it stays as it is.
    """

    key: int
    op: str
    attributes: str
    inputs: tuple[int, ...]
    types: tuple[str, ...]
    name: str
    is_static: bool
    is_leaf: bool
    is_opaque: bool = False


@dataclasses.dataclass(frozen=True)
class Price:
    """Predicted time of an operator in its graph.

    Attributes:
        time_us: in microseconds.
        is_measured: timed on this machine; else by the analytic model.
    """

    time_us: float
    is_measured: bool


@dataclasses.dataclass(frozen=True)
class DrawnGraph:
    """A graph.

    Attributes:
        operators: in topological order, leaves among them.
        outputs: keys of the nodes that provide the graph's outputs.
        prices: by key; of what runs at every call.
        work: what the cost model counts: "flops", "bytes" (read and written), "peak_bytes", "launches".
    """

    operators: tuple[Operator, ...]
    outputs: tuple[int, ...]
    prices: Mapping[int, Price]
    work: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class DrawnStep:
    """What one step did.

    Attributes:
        substitution: its name in the library.
        meaning: what it says of itself in the library; may be empty.
        proof: "proved", "tested" or "assumed".
        removed: operators that were there before and are not after.
        added: operators that it made.
        around: operators that stayed and are read by the others, by key.
        read_before: keys of `removed` that the rest of the graph reads.
        read_after: keys that the rest of the graph reads instead.
    """

    substitution: str
    meaning: str
    proof: str
    removed: tuple[Operator, ...]
    added: tuple[Operator, ...]
    around: Mapping[int, Operator]
    read_before: tuple[int, ...]
    read_after: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Drawing:
    """All that the page shows of one graph.

    Attributes:
        before: the graph that was captured.
        after: what the plan made of it.
        steps: in order.
        origins: keys of `before` from which each operator of a later graph comes, by its key; a node that
            was there from the beginning comes from itself.
        sources: where the user wrote each operator of `before`, by key, as far as that is known.
        labels: names of inputs and weights in the user's words, by key, as far as they are known.
    """

    before: DrawnGraph
    after: DrawnGraph
    steps: tuple[DrawnStep, ...]
    origins: Mapping[int, tuple[int, ...]]
    sources: Mapping[int, Source]
    labels: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def modules_of(self, key: int) -> str:
        """Path of the innermost module that holds all of what an operator comes from."""
        found = (self.sources.get(origin) for origin in self.origins.get(key, ()))
        paths = [source.module.split(".") for source in found if source is not None]
        common = paths[0] if paths else []
        for path in paths[1:]:
            length = next((at for at, (a, b) in enumerate(zip(common, path, strict=False)) if a != b), None)
            common = common[: min(len(common), len(path)) if length is None else length]
        return ".".join(common)


class Record(Protocol):
    """Keeps what a drawing is made from."""

    def draw(self) -> Drawing:
        """Make it."""
        ...
