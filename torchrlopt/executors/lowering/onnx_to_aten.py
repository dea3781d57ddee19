"""Lowers an ONNX model to one ATen graph: restores original calls if possible and converts other nodes."""

from __future__ import annotations

import contextlib
import itertools
import operator
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.as_is import AS_IS
from torchrlopt.executors.lowering.fx_values import ORIGIN
from torchrlopt.executors.lowering.lazy_code import lazy_module
from torchrlopt.executors.lowering.model_inputs import fake_input
from torchrlopt.executors.lowering.original_calls import Group, Groups
from torchrlopt.executors.lowering.output_layout import OutputEmitter, layout_of, with_layout
from torchrlopt.executors.lowering.symbols import STRIDES, traced_number
from torchrlopt.onnx import opsets
from torchrlopt.ops.convert import convert
from torchrlopt.ops.emitter import Emitter, Entry, Ints, aten
from torchrlopt.ops.onnx_types import tensor_of, torch_dtype
from torchrlopt.ops.to_onnx import TABLE
from torchrlopt.torch_private.tensors import FakeTensor, FakeTensorMode

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured

# What an opaque call may return, apart from None and objects, for which its node has no output.
_RESULTS = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)

# These need the strides they were recorded with, which a rewritten operand may not have.
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})


def lower_captured(model: onnx_ir.Model, captured: Captured) -> fx.GraphModule:
    """The ATen graph of a rewritten model, with the placeholders and outputs of the captured one.

    Every node carries `meta["val"]`.

    Raises:
        LoweringError: a node can be neither restored nor converted.
    """
    placeholders = captured.aten.graph.find_nodes(op="placeholder")
    values = [node.meta.get("val") for node in captured.aten.graph.nodes]
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    if mode is None:
        raise LoweringError("the captured graph has no fake values")
    devices = [v.device for v in values if isinstance(v, torch.Tensor) and v.device.type != "cpu"]
    emitter = Emitter(mode, devices[0] if devices else torch.device("cpu"))
    lowering = Lowering(model, emitter, captured)
    for node in placeholders:
        lowering.add_placeholder(node.name, node.meta.get("val"))
    for value in model.graph.inputs:
        lowering.bind_input(value)
    lowering.add_nodes()
    return lowering.finish_captured()


def lower_model(model: onnx_ir.Model, device: torch.device | None = None) -> fx.GraphModule:
    """The ATen graph of a model read from a file: inputs and outputs are the model's.

    Args:
        model: the model.
        device: where inputs and constants are; None: the CPU.

    Raises:
        LoweringError: a node has no converter.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    lowering = Lowering(model, Emitter(mode, device or torch.device("cpu")), None)
    lowering.add_inputs()
    lowering.add_nodes()
    return lowering.finish_model()


class Lowering:
    """One lowering; maps each ONNX value to what it was lowered to."""

    def __init__(self, model: onnx_ir.Model, emitter: Emitter, captured: Captured | None) -> None:
        opset = model.graph.opset_imports.get("", opsets.OLDEST)
        if opset < opsets.OLDEST:
            raise LoweringError("the opset is too old", expected=f"{opsets.OLDEST} or later", got=opset)
        self.model = model
        self.emitter = emitter
        self.captured = captured
        self.groups = Groups(model, captured) if captured is not None else None
        self.placeholders: dict[str, fx.Node] = {}
        self.entries: dict[onnx_ir.Value, Entry] = {}
        self.by_name: dict[str, onnx_ir.Value] = {}
        self.scalars: dict[fx.Node, fx.Node] = {}
        self.in_progress: set[onnx_ir.Node] = set()
        self.done: set[onnx_ir.Node] = set()
        for value in model.graph.initializers.values():
            self.by_name[str(value.name)] = value
            if value.const_value is not None:
                with contextlib.suppress(LoweringError):  # raised later, if the value is read
                    self.entries[value] = tensor_of(value.const_value)
        for node in model.graph:
            self.by_name |= {str(output.name): output for output in node.outputs if output.name}

    def add_placeholder(self, name: str, fake: Any) -> fx.Node:
        """Declare an argument of the callable; its name appears in generated source."""
        node = self.placeholders[name] = self.emitter.graph.placeholder(name)
        node.meta["val"] = fake
        return node

    def bind_input(self, value: onnx_ir.Value) -> None:
        """Connect an input of a captured graph with its placeholder or, for a large constant, its tensor."""
        assert self.captured is not None
        name = str(value.name)
        self.by_name[name] = value
        if name in self.placeholders:
            node = self.placeholders[name]
            is_tensor = isinstance(node.meta["val"], torch.Tensor)
            self.entries[value] = node if is_tensor else Ints([node], 0)
        elif name in self.captured.constants:
            self.entries[value] = self.captured.constants[name]
        else:
            raise LoweringError("a graph input is none of the captured graph's", got=name)

    def add_inputs(self) -> None:
        """Declare the inputs of a model from a file, numbered: no text from the file becomes source code."""
        for value in self.model.graph.inputs:
            if value.name not in self.model.graph.initializers:
                fake = fake_input(self.emitter, value)
                self.entries[value] = self.add_placeholder(f"input_{len(self.placeholders)}", fake)

    def add_nodes(self) -> None:
        """Lower all nodes; operands later in the list are lowered first."""
        for node in self.model.graph:
            group = self.groups.of(node) if self.groups is not None else None
            # Emit a group at its last node, when all its operands exist.
            if node not in self.done and (group is None or node is group.members[-1]):
                self._lower(node)

    def entry(self, value: onnx_ir.Value) -> Entry:
        """The entry of a value; lowers the node that computes it if necessary."""
        if value not in self.entries:
            node = value.producer()
            if node is None and value.const_value is not None:
                return tensor_of(value.const_value)
            if node is None:
                raise LoweringError("a value has no producer", got=value.name)
            self._lower(node)
        if value not in self.entries:
            raise LoweringError("an output has no counterpart in torch", got=value.name)
        return self.entries[value]

    def _lower(self, node: onnx_ir.Node) -> None:
        if node in self.in_progress:
            raise LoweringError("the graph has a cycle", where=str(node.name))
        self.in_progress.add(node)
        last = next(iter(reversed(self.emitter.graph.nodes)), None)
        members: tuple[onnx_ir.Node, ...] = (node,)
        if node.domain == opsets.ATEN_DOMAIN and self.captured is not None:
            self._put_opaque_back(node)
        else:
            group = self.groups.of(node) if self.groups is not None else None
            if group is not None and self._put_back(node, group):
                members = group.members
            else:
                self.convert(node)
        origin = tuple(str(member.name) for member in members)
        for emitted in itertools.takewhile(lambda each: each is not last, reversed(self.emitter.graph.nodes)):
            emitted.meta.setdefault(ORIGIN, origin)  # operands lowered on the way already have their own
        self.in_progress.discard(node)
        self.done.add(node)

    # ---- original calls

    def _put_back(self, node: onnx_ir.Node, group: Group) -> bool:
        """Emit the calls of a group; False if an operand no longer exists."""
        assert self.groups is not None
        operands: dict[fx.Node, fx.Node] = {}
        for call in group.calls:
            for source in call.all_input_nodes:
                if source in operands or source in group.calls:
                    continue
                found = self._operand(source, group)
                if found is None:
                    self.groups.forget(node)
                    return False
                operands[source] = found
        self.done.update(group.members)
        for call in group.calls:
            operands[call] = self._copy(call, operands)
        for value, key in group.outputs.items():
            name, _, index = key.rpartition(".")
            if name and key not in {call.name for call in group.calls}:
                tuple_node = next(operands[call] for call in group.calls if call.name == name)
                self.entries[value] = self.emitter.item(tuple_node, int(index))
            else:
                self.entries[value] = next(operands[call] for call in group.calls if call.name == key)
        return True

    def _operand(self, source: fx.Node, group: Group) -> fx.Node | None:
        """The current node for an operand of an original call; None if there is none."""
        assert self.captured is not None
        name = self.captured.fx_values.get(source.name)
        value = None
        if name is not None:
            value = group.redirected.get(name, self.by_name.get(name))
        if value is not None and not self._is_pending(value):
            entry = self.entry(value)
            if isinstance(source.meta.get("val"), torch.Tensor):
                return self.emitter.tensor(entry)
            known = self.emitter.known_ints(entry)
            if known is not None and isinstance(known.elements[0], fx.Node):
                return known.elements[0]
        return self._scalar(source)

    def _is_pending(self, value: onnx_ir.Value) -> bool:
        """Whether a value is currently being lowered: reading it would be a cycle."""
        producer = value.producer()
        return value not in self.entries and producer is not None and producer in self.in_progress

    def _scalar(self, source: fx.Node) -> fx.Node | None:
        """A copy of an original node that is not a tensor (a symbolic size, a constant, a subgraph)."""
        assert self.captured is not None
        if source.name in self.placeholders:
            return self.placeholders[source.name]
        if source in self.scalars:
            return self.scalars[source]
        if source.op == "get_attr":
            held = operator.attrgetter(str(source.target))(self.captured.aten)
            if isinstance(held, torch.Tensor):
                return self.emitter.constant(held)
            self.scalars[source] = self.emitter.submodule(held)
            return self.scalars[source]
        if isinstance(source.meta.get("val"), torch.Tensor | tuple | list) or source.op != "call_function":
            return None
        if source.target in STRIDES:
            return traced_number(self.emitter, source)
        operands: dict[fx.Node, fx.Node] = {}
        for argument in source.all_input_nodes:
            if isinstance(argument.meta.get("val"), torch.Tensor):
                name = self.captured.fx_values.get(argument.name)
                value = self.by_name.get(name) if name is not None else None
                found = self.placeholders.get(argument.name)
                if found is None and value is not None and value in self.entries:
                    found = self.emitter.tensor(self.entries[value])
            else:
                found = self._scalar(argument)
            if found is None:
                return traced_number(self.emitter, source)
            operands[argument] = found
        self.scalars[source] = self.emitter.graph.node_copy(source, operands.__getitem__)
        return self.scalars[source]

    def _copy(self, call: fx.Node, operands: dict[fx.Node, fx.Node]) -> fx.Node:
        """An original call on the current operands."""
        same = all(
            layout_of(operands[source].meta.get("val")) == layout_of(source.meta.get("val"))
            for source in call.all_input_nodes
        )
        if not same and _may_depend_on_strides(call):
            for source in call.all_input_nodes:
                operands[source] = with_layout(self.emitter, operands[source], source.meta["val"])
            same = True
        node = self.emitter.graph.node_copy(call, operands.__getitem__)
        if not same:
            if node.target in _VIEWS:
                node.target = aten.reshape.default
            node.meta = {key: found for key, found in node.meta.items() if key != "val"}
            self.emitter.refresh(node)
        return node

    def _put_opaque_back(self, node: onnx_ir.Node) -> None:
        """Restore the ATen call behind an opaque node; inputs are in the order of its arguments."""
        assert self.captured is not None
        wanted = str(node.attributes["fx_node"].value)
        call = next((n for n in self.captured.aten.graph.nodes if n.name == wanted), None)
        if call is None:
            raise LoweringError("an opaque node names no ATen call", where=str(node.name), got=wanted)
        inputs = [value for value in node.inputs if value is not None]
        operands: dict[fx.Node, fx.Node] = {}
        for source in _flattened_nodes(call):
            if source.name in self.captured.fx_values and inputs:
                entry = self.entry(inputs.pop(0))
                if isinstance(source.meta.get("val"), torch.Tensor):
                    operands[source] = self.emitter.tensor(entry)
                    continue
            found = self._scalar(source)
            if found is None:
                raise LoweringError("an operand of an opaque call is gone", where=wanted, got=source.name)
            operands[source] = found
        for token in inputs:  # what is left: the call whose side effect must come first
            before = token.producer()
            if before is not None and before not in self.done:
                self._lower(before)
        copy = self._copy(call, operands)
        if wanted in self.captured.excluded:
            copy.meta[AS_IS] = True
        outputs = node.outputs[: len(node.outputs) - ("has_token" in node.attributes)]
        value = call.meta.get("val")
        if isinstance(value, tuple | list):
            indices = (index for index, item in enumerate(value) if isinstance(item, _RESULTS))
            for index, output in zip(indices, outputs, strict=True):
                self.entries[output] = self.emitter.item(copy, index)
        elif outputs:
            self.entries[outputs[0]] = copy if isinstance(value, torch.Tensor) else Ints([copy], 0)

    # ---- converted nodes

    def convert(self, node: onnx_ir.Node) -> None:
        """Emit the calls of a node with its converter."""
        inputs = [None if value is None else self.entry(value) for value in node.inputs]
        results = convert(self.emitter, node, inputs)
        for output, result in zip(node.outputs, results, strict=True):
            if result is not None:
                self.entries[output] = result
                self._declare(output, result)

    def _declare(self, output: onnx_ir.Value, entry: Entry) -> None:
        """Give a node without a fake value the one declared by the model or the captured graph."""
        if not isinstance(entry, fx.Node) or "val" in entry.meta or output.shape is None:
            return
        sizes: list[Any] = [dim for dim in output.shape if isinstance(dim, int)]
        if len(sizes) < len(output.shape):
            sizes = self._recorded_sizes(output)
        if len(sizes) == len(output.shape) and output.dtype is not None:
            with self.emitter.fake():
                entry.meta["val"] = torch.empty(
                    sizes, dtype=torch_dtype(output.dtype), device=self.emitter.device
                )

    def _recorded_sizes(self, output: onnx_ir.Value) -> list[Any]:
        """Sizes of the original call's result; empty if the output is not such a result."""
        name = None if self.captured is None else self.captured.values.get(str(output.name))
        nodes = () if self.captured is None else self.captured.aten.graph.nodes
        value = next((node.meta.get("val") for node in nodes if node.name == name), None)
        return list(value.shape) if isinstance(value, torch.Tensor) else []

    # ---- results

    def finish_captured(self) -> fx.GraphModule:
        """The module, with its results in the captured graph's structure."""
        assert self.captured is not None
        (output,) = self.captured.aten.graph.find_nodes(op="output")
        outputs = OutputEmitter(self.emitter, self.placeholders, self._scalar)
        results: dict[fx.Node, Entry] = {}
        waiting = list(self.model.graph.outputs)
        for source in output.all_input_nodes:
            if source.op == "placeholder":
                results[source] = self.placeholders[source.name]
            elif isinstance(source.meta.get("val"), torch.Tensor):
                value = waiting.pop(0)
                view = outputs.view_of_input(source)
                results[source] = self.entry(value) if view is None else view
            else:
                found = self._scalar(source)
                if found is None:
                    raise LoweringError("an output is no tensor and cannot be copied", where=source.name)
                results[source] = found
        nodes = outputs.matched({source: self._result(entry, source) for source, entry in results.items()})
        self.emitter.graph.output(fx.map_arg(output.args[0], nodes.__getitem__))
        return self.module()

    def _result(self, entry: Entry, source: fx.Node) -> fx.Node:
        """The node of a result; a number that the original returns stays a number."""
        if isinstance(entry, fx.Node) and not isinstance(source.meta.get("val"), torch.Tensor):
            return entry
        return self.emitter.tensor(entry)

    def finish_model(self) -> fx.GraphModule:
        """The module, with the model's outputs as results."""
        entries = [self.entry(value) for value in self.model.graph.outputs]
        self.emitter.graph.output(tuple(self.emitter.tensor(entry) for entry in entries))
        return self.module()

    def module(self) -> fx.GraphModule:
        """The module of the emitted graph, without dead code."""
        graph = self.emitter.graph
        graph.eliminate_dead_code()
        return lazy_module({**self.emitter.attributes, **self.emitter.submodules}, graph)


def _may_depend_on_strides(call: fx.Node) -> bool:
    """Whether the result of a call may depend on the strides of its operands.

    The calls that capture translates are known not to, but GroupNorm fails for gaps between its elements.
    Embedding bags read strided ids as if they were dense.
    """
    name = str(call.target).removeprefix("aten.")
    return name not in TABLE or name == "native_group_norm.default"


def _flattened_nodes(call: fx.Node) -> list[fx.Node]:
    """The fx nodes among a call's arguments in order, with repeats."""
    found: list[fx.Node] = []

    def note(node: fx.Node) -> fx.Node:
        found.append(node)
        return node

    fx.map_arg((call.args, call.kwargs), note)
    return found
