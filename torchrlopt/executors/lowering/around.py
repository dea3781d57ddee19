"""Lowers as much as possible of two models from files, around the operators without a converter.

Such an operator is cut out of both models: its inputs become results, and its outputs become arguments. If
the rest of a rewritten model computes the same results from the same arguments, then the cut operators get
the same inputs and the models are equivalent, whatever the operators do.

An operator can be cut out only if both models have it. A node that was not rewritten keeps its name,
operator, attributes and number of inputs, because the writer puts the source's own node back.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.free_sizes import Declared, Sizes, choices
from torchrlopt.executors.lowering.model_inputs import fake_input
from torchrlopt.executors.lowering.onnx_to_aten import Lowering, lower_model
from torchrlopt.onnx.reader import attribute_text
from torchrlopt.onnx.subgraphs import of_attribute, outer_values, subgraphs
from torchrlopt.ops.emitter import Emitter
from torchrlopt.ops.onnx_types import torch_dtype
from torchrlopt.plain_text import escaped
from torchrlopt.torch_private.tensors import FakeTensorMode

Passed = tuple[str, str, int]
"""A value without a torch tensor: its reader, its producer node or weight, and the index of the output."""

# Errors that converters may raise for invalid attributes (division by alpha = 0, an unknown reduction).
_UNEXPECTED = (ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RuntimeError)


@dataclasses.dataclass(frozen=True)
class Around:
    """The lowered part of a model.

    Attributes:
        module: takes the model's inputs, then the outputs of the cut nodes; returns the model's outputs, then
            the inputs of the cut nodes.
        cut: names of the cut nodes.
        passed: values passed between cut nodes, or from them to the model's outputs, that are not tensors.
        arguments: the values behind the arguments of `module`, in order, with fake tensors of concrete sizes.
    """

    module: fx.GraphModule
    cut: tuple[str, ...]
    passed: tuple[Passed, ...]
    arguments: tuple[tuple[onnx_ir.Value, torch.Tensor], ...]


_Pairs = Mapping[str, tuple[onnx_ir.Node, onnx_ir.Node]]
"""The nodes that may be cut out, by name: (in the source, in the rewritten model)."""


def lower_pair(source: onnx_ir.Model, rewritten: onnx_ir.Model) -> tuple[Around, Around]:
    """Lower two models at the same sizes, without the nodes that cannot be lowered in either.

    Args:
        source: from a file; its values are given concrete shapes.
        rewritten: the result of rewriting it; likewise.

    Raises:
        LoweringError: a node that was rewritten or created cannot be lowered.
    """
    pairs = _pairs(source, rewritten)
    declared = [Declared(model) for model in (source, rewritten)]
    sizes, cut = _fitting(source, pairs, declared[0])
    for each in declared:
        each.bind(sizes)
    gone = next((name for name in cut if name not in pairs), None)
    if gone is not None:
        raise LoweringError("an operator without a converter is not there any more", got=gone)
    while True:
        lowered = [_Around(model, cut, pairs, sizes) for model in (source, rewritten)]
        found = [name for each in lowered for name in each.run()]
        if not found:
            return lowered[0].finish_around(), lowered[1].finish_around()
        cut = tuple(dict.fromkeys((*cut, *found)))


def lower_alone(model: onnx_ir.Model) -> Around:
    """Lower a whole model at sizes that fit it.

    Args:
        model: from a file; its values are given concrete shapes.

    Raises:
        LoweringError: a node cannot be lowered at any sizes.
    """
    declared = Declared(model)
    sizes, cut = _fitting(model, {}, declared)
    declared.bind(sizes)
    if cut:
        try:
            lower_model(model)  # raises the reason
        except _UNEXPECTED as error:
            raise LoweringError("attributes that make no sense", where=cut[0], got=error) from escaped(error)
    lowering = _Around(model, (), {}, sizes)
    lowering.run()
    return lowering.finish_around()


def _fitting(source: onnx_ir.Model, pairs: _Pairs, declared: Declared) -> tuple[Sizes, tuple[str, ...]]:
    """The choice of sizes at which the fewest nodes cannot be lowered, and the names of those nodes.

    Sizes that do not fit show up as a node that cannot be lowered. If two successive choices leave the same
    nodes, these have no converter, whatever the sizes.
    """
    every = {str(node.name): (node, node) for node in source.graph} | dict(pairs)
    tried: list[tuple[Sizes, tuple[str, ...]]] = []
    for sizes in choices(source):
        declared.bind(sizes)
        cut = tuple(_Around(source, (), every, sizes).run())
        tried.append((sizes, cut))
        if not cut or (len(tried) > 1 and set(cut) == set(tried[-2][1])):
            break
    return min(tried, key=lambda each: len(each[1]))


def _pairs(source: onnx_ir.Model, rewritten: onnx_ir.Model) -> _Pairs:
    """The live nodes that both models have."""
    live, others = _live(source), {str(node.name): node for node in _live(rewritten)}
    found = ((node, others.get(str(node.name))) for node in source.graph if node in live)
    return {str(a.name): (a, b) for a, b in found if b is not None and _described(a) == _described(b)}


def _is_tensor(value: onnx_ir.Value) -> bool:
    """Whether a value is declared as a tensor that torch supports."""
    if not isinstance(value.type, onnx_ir.TensorType) or value.shape is None:
        return False
    try:
        torch_dtype(value.dtype)
    except LoweringError:
        return False
    return True


def _described(node: onnx_ir.Node) -> tuple[object, ...]:
    """What an unchanged node keeps. In its bodies, only the names of outer values they read may change."""
    attributes = {
        name: "" if of_attribute(attribute) else attribute_text(attribute)
        for name, attribute in node.attributes.items()
    }
    domain = "" if node.domain == "ai.onnx" else node.domain
    # Trailing omitted operands are not written.
    num_inputs = max((index + 1 for index, value in enumerate(node.inputs) if value is not None), default=0)
    return domain, node.op_type, num_inputs, len(node.outputs), attributes


def _live(model: onnx_ir.Model) -> set[onnx_ir.Node]:
    """The nodes that the outputs depend on."""
    live: set[onnx_ir.Node] = set()
    waiting = [value.producer() for value in model.graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in live and node.graph is model.graph:
            live.add(node)
            waiting += [value.producer() for value in _read_by(node) if value is not None]
    return live


def _read_by(node: onnx_ir.Node) -> Iterator[onnx_ir.Value | None]:
    """The values a node reads, including its subgraphs, in an order unaffected by rewriting other nodes."""
    yield from node.inputs
    outside = set(outer_values(node)) | set(node.inputs)
    for graph in subgraphs(node):
        for inner in graph.all_nodes():
            yield from (value for value in inner.inputs if value in outside)
        yield from (value for value in graph.outputs if value in outside)


class _Around(Lowering):
    """A lowering without the cut nodes, which records further nodes that must be cut.

    Args:
        model: with concrete input shapes.
        cut: names of the nodes to cut out.
        pairs: the nodes that may be cut out.
        sizes: for unknown sizes of the cut nodes' outputs.
    """

    def __init__(self, model: onnx_ir.Model, cut: Sequence[str], pairs: _Pairs, sizes: Sizes) -> None:
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        super().__init__(model, Emitter(mode, torch.device("cpu")), None)
        self.pairs = pairs
        self.sizes = sizes
        live = _live(model)
        nodes = {str(node.name): node for node in model.graph if node in live}
        self.cut = {nodes[name]: name for name in cut}
        self.found: list[str] = []
        self.passed: list[Passed] = []
        self.arguments: list[tuple[onnx_ir.Value, torch.Tensor]] = []
        self.done |= {node for node in model.graph if node not in live}

    def run(self) -> list[str]:
        """Lower the model; returns the names of further nodes that must be cut out of it."""
        self.add_inputs()
        for node in self.cut:
            self._stand_in_for(node)
        self.done |= set(self.cut)
        self.add_nodes()
        return self.found

    def add_inputs(self) -> None:
        """Declare the inputs that torch supports; readers of others must be cut out."""
        for value in self.model.graph.inputs:
            is_weight = value.name in self.model.graph.initializers
            if not is_weight and _is_tensor(value):
                self._add_argument(value, value)

    def convert(self, node: onnx_ir.Node) -> None:
        """Emit the calls of a node; if that fails, arguments replace its outputs."""
        if node in self.cut:  # reached through an output that no argument can replace
            return
        try:
            super().convert(node)
        except (LoweringError, *_UNEXPECTED) as error:
            name = str(node.name)
            if name not in self.pairs:
                raise LoweringError(
                    "an operator that has a converter in one model only", where=name, got=str(error)
                ) from error
            self.cut[node] = name
            self.found.append(name)
            self._stand_in_for(node)

    def _stand_in_for(self, node: onnx_ir.Node) -> None:
        """Turn those outputs of a node that are tensors of known types into arguments.

        Either model may know the type: the file what it declares, the other what was inferred.
        """
        a, b = self.pairs[self.cut[node]]
        for output, *known in zip(node.outputs, a.outputs, b.outputs, strict=True):
            typed = next((value for value in known if isinstance(value.type, onnx_ir.TensorType)), None)
            shaped = next((value for value in known if value.shape is not None), None)
            if output.name and typed is not None and shaped is not None:
                shape = [self.sizes.assumed(dim, axis) for axis, dim in enumerate(shaped.shape or ())]
                like = onnx_ir.Value(name=output.name, type=typed.type, shape=onnx_ir.Shape(shape))
                with contextlib.suppress(LoweringError):  # torch lacks the type
                    self._add_argument(output, like)

    def _add_argument(self, value: onnx_ir.Value, like: onnx_ir.Value) -> None:
        fake = fake_input(self.emitter, like)
        name = f"argument_{len(self.placeholders)}"
        self.add_placeholder(name, fake)
        self.entries[value] = self.placeholders[name]
        self.arguments.append((value, fake))

    def finish_around(self) -> Around:
        """The module and what it leaves out."""
        results: list[fx.Node] = []
        for index, value in enumerate(self.model.graph.outputs):
            results += self._results_of(value, f"output {index}")
        for node, name in self.cut.items():
            for index, read in enumerate(_read_by(node)):
                results += self._results_of(read, f"{name}, operand {index}")
        self.emitter.graph.output(tuple(results))
        return Around(self.module(), tuple(self.cut.values()), tuple(self.passed), tuple(self.arguments))

    def _results_of(self, value: onnx_ir.Value | None, reader: str) -> list[fx.Node]:
        """The node that yields a value, in a list; empty if it was cut out."""
        if value is None:
            return []
        producer = value.producer()
        if value not in self.entries and (producer is None or producer.graph is not self.model.graph):
            self.passed.append((reader, str(value.name), 0))
        elif value not in self.entries and producer in self.cut:
            self.passed.append((reader, self.cut[producer], producer.outputs.index(value)))
        else:
            return [self.emitter.tensor(self.entry(value))]
        return []
