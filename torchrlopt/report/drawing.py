"""A plan as it is drawn: operators before and after, and what each step removed and added.

Plain values, so that the page needs neither the C++ core nor the model. The planner keeps a `Record`, which
is small, and draws it when the page is requested.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Source:
    """Where an operator comes from in the user's program.

    Attributes:
        file: as a module would be imported, such as "package/module.py"; empty if not known.
        line: from 1; 0 if not known.
        text: of that line.
        module: path of the `torch.nn.Module` that was running, such as "encoder.layer.0"; "" for the model.
    """

    file: str
    line: int
    text: str
    module: str = ""

    @property
    def place(self) -> str:
        """File and line; empty if not known."""
        return f"{self.file}:{self.line}" if self.file else ""


@dataclasses.dataclass(frozen=True)
class Operator:
    """One node of a graph.

    Attributes:
        key: of the node; one that survives a step keeps it.
        op: operator.
        attributes: its attributes, as text.
        inputs: keys of the nodes whose results it reads, including graph inputs and weights.
        types: of its results, such as "f32[1, 64, 56, 56]".
        name: in the captured graph; empty if a substitution made it.
        is_static: an expression over weights, evaluated once per set of weights.
        is_leaf: an input, a weight or a constant.
        is_opaque: an operator that the core does not know, and leaves unchanged.
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
        is_measured: whether it was timed on this machine; otherwise it comes from the analytic model.
    """

    time_us: float
    is_measured: bool


@dataclasses.dataclass(frozen=True)
class DrawnGraph:
    """A graph.

    Attributes:
        operators: in topological order, including leaves.
        outputs: keys of the nodes that provide the graph's outputs.
        prices: by key; of operators that run in every call.
        work: counts of the cost model: "flops", "bytes" (read and written), "peak_bytes", "launches".
    """

    operators: tuple[Operator, ...]
    outputs: tuple[int, ...]
    prices: Mapping[int, Price]
    work: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class DrawnStep:
    """One step of a plan.

    Attributes:
        substitution: its name in the library.
        meaning: its description in the library; may be empty.
        proof: "proved", "tested" or "assumed".
        removed: operators that the step removed.
        added: operators that the step added.
        around: unchanged operators that these read, by key.
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
    """Everything that the page shows of one graph.

    Attributes:
        before: the captured graph.
        after: the planned graph.
        steps: in order.
        origins: for each operator of a later graph, by key, the keys of `before` that it comes from; an
            original node comes from itself.
        sources: where the user wrote each operator of `before`, by key, if known.
        labels: the user's names of inputs and weights, by key, if known.
    """

    before: DrawnGraph
    after: DrawnGraph
    steps: tuple[DrawnStep, ...]
    origins: Mapping[int, tuple[int, ...]]
    sources: Mapping[int, Source]
    labels: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def modules_of(self, key: int) -> str:
        """Path of the innermost module that contains all origins of an operator."""
        found = (self.sources.get(origin) for origin in self.origins.get(key, ()))
        paths = [source.module.split(".") for source in found if source is not None]
        common = paths[0] if paths else []
        for path in paths[1:]:
            length = next((at for at, (a, b) in enumerate(zip(common, path, strict=False)) if a != b), None)
            common = common[: min(len(common), len(path)) if length is None else length]
        return ".".join(common)


class Record(Protocol):
    """Keeps the data that a drawing is made from."""

    def draw(self) -> Drawing:
        """Make the drawing."""
        ...
