"""Lowers what can be run of a model from a file, around the operators that have no converter.

Such an operator is cut out: what it reads become results, and what it makes become arguments. If the rest of
a rewritten model makes the same results of the same arguments, then the operators are given the same and the
models compute the same, whatever the operators do.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence

import onnx_ir
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.converters.emitter import Emitter
from torchrlopt.executors.lowering.model_inputs import fake_input
from torchrlopt.executors.lowering.onnx_to_aten import Lowering
from torchrlopt.onnx.reader import outer_values

Passed = tuple[str, str, int]
"""A value that torch has no tensor for: who reads it, the node or weight it is of, which output it is."""


@dataclasses.dataclass(frozen=True)
class Around:
    """What was lowered of a model.

    Attributes:
        module: takes the model's inputs, then the outputs of the nodes that were cut out, and returns the
            model's outputs, then what those nodes read.
        cut: names of the nodes that were cut out.
        passed: what goes from one such node to another, or to the model's outputs, and is no tensor.
    """

    module: fx.GraphModule
    cut: tuple[str, ...]
    passed: tuple[Passed, ...]


def cut_of(model: onnx_ir.Model) -> tuple[str, ...]:
    """Names of the nodes that have to be cut out, those that the outputs do not need aside."""
    finding = _Finding(model, _emitter(), None)
    finding.add_inputs()
    finding.add_nodes()
    live = _live(model)
    return tuple(str(node.name) for node in finding.cut if node in live)


def lower_around(model: onnx_ir.Model, cut: Sequence[str]) -> Around:
    """Lower a model without some of its nodes.

    Args:
        model: from a file.
        cut: names of the nodes, see `cut_of`.

    Raises:
        LoweringError: another node has no converter either, or one of them is not there.
    """
    lowering = _Around(model, _emitter(), cut)
    lowering.add_inputs()
    lowering.cut_out()
    lowering.add_nodes()
    return lowering.finish_around()


def _emitter() -> Emitter:
    return Emitter(FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True), torch.device("cpu"))


def _live(model: onnx_ir.Model) -> set[onnx_ir.Node]:
    """The nodes that the outputs need."""
    live: set[onnx_ir.Node] = set()
    waiting = [value.producer() for value in model.graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in live and node.graph is model.graph:
            live.add(node)
            waiting += [value.producer() for value in _read_by(node) if value is not None]
    return live


def _read_by(node: onnx_ir.Node) -> Iterator[onnx_ir.Value | None]:
    """What a node reads, its subgraphs included; in an order that rewriting other nodes does not change."""
    yield from node.inputs
    for attribute in node.attributes.values():
        graphs: Collection[onnx_ir.Graph] = ()
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            graphs = (attribute.as_graph(),)
        elif attribute.type == onnx_ir.AttributeType.GRAPHS:
            graphs = tuple(attribute.as_graphs())
        outside = set(outer_values(node)) | set(node.inputs)
        for graph in graphs:
            for inner in graph.all_nodes():
                yield from (value for value in inner.inputs if value in outside)


class _Finding(Lowering):
    """A lowering that goes on where a node has no converter, and notes the node."""

    def __init__(self, model: onnx_ir.Model, emitter: Emitter, captured: None) -> None:
        super().__init__(model, emitter, captured)
        self.cut: dict[onnx_ir.Node, None] = {}

    def convert(self, node: onnx_ir.Node) -> None:
        """Emit the calls of a node; where that fails, arguments stand for its outputs."""
        if node in self.cut:  # somebody reads an output that no argument can stand for
            return
        try:
            super().convert(node)
        except LoweringError:
            self.cut[node] = None
            _replace_outputs(self, node)


class _Around(Lowering):
    """A lowering without the nodes that are cut out."""

    def __init__(self, model: onnx_ir.Model, emitter: Emitter, cut: Sequence[str]) -> None:
        super().__init__(model, emitter, None)
        self.live = _live(model)
        nodes = {str(node.name): node for node in model.graph}
        missing = [name for name in cut if nodes.get(name) not in self.live]
        if missing:
            raise LoweringError("an operator without a converter is not there any more", got=missing[0])
        self.cut = [nodes[name] for name in cut]
        self.passed: list[Passed] = []

    def cut_out(self) -> None:
        """Declare the outputs of the nodes that are cut out as arguments."""
        for node in self.cut:
            _replace_outputs(self, node)
        self.done |= {node for node in self.model.graph if node not in self.live}
        self.done |= set(self.cut)

    def finish_around(self) -> Around:
        """The module with what it leaves out."""
        results: list[fx.Node] = []
        for index, value in enumerate(self.model.graph.outputs):
            results += self._results_of(value, f"output {index}")
        for node in self.cut:
            for index, read in enumerate(_read_by(node)):
                results += self._results_of(read, f"{node.name}, operand {index}")
        self.emitter.graph.output(tuple(results))
        names = tuple(str(node.name) for node in self.cut)
        return Around(self.module(), names, tuple(self.passed))

    def _results_of(self, value: onnx_ir.Value | None, reader: str) -> list[fx.Node]:
        """The node that yields a value, in a list; none where it was cut out."""
        if value is None:
            return []
        producer = value.producer()
        if value not in self.entries and producer is None:
            self.passed.append((reader, str(value.name), 0))
        elif value not in self.entries and producer in self.cut:
            self.passed.append((reader, str(producer.name), producer.outputs.index(value)))
        else:
            return [self.emitter.tensor(self.entry(value))]
        return []


def _replace_outputs(lowering: Lowering, node: onnx_ir.Node) -> None:
    """Make arguments of those outputs of a node that are tensors of known types."""
    for output in node.outputs:
        if output.name and isinstance(output.type, onnx_ir.TensorType):
            with contextlib.suppress(LoweringError):  # of a type that torch has not, or unknown
                fake = fake_input(lowering.emitter, output)
                name = f"cut_{len(lowering.placeholders)}"
                lowering.add_placeholder(name, fake)
                lowering.entries[output] = lowering.placeholders[name]
