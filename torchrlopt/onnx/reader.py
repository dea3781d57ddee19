"""Converts an ONNX model to a C++ graph. Unknown operators become opaque nodes; nothing is skipped."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray

from torchrlopt import _C
from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.onnx.forms.from_onnx import TypedForm, typed_form
from torchrlopt.onnx.forms.types import contradicts, core_type, dtype_name, dtype_of
from torchrlopt.onnx.opsets import NATIVE, NEWEST, OLDEST, STANDARD_DOMAINS
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.subgraphs import of_attribute, outer_values

_MAX_CONSTANT = 64  # maximum elements of a constant whose content becomes part of the graph
_VIEWS = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_MAX_CONTENT = 1 << 16  # maximum elements of a constant that may become an attribute (repeats, sizes)


def read(model: onnx_ir.Model, static_inputs: Collection[str] = ()) -> Program:
    """Read a model into a C++ graph: one typed operator or opaque node for every node of the model.

    Args:
        model: every node named, nodes in topological order. It is kept as `Program.source`, unmodified.
        static_inputs: names of the graph inputs that are weights. Initializers always are.

    Raises:
        ModelFormatError: the model is inconsistent: a value read before it is defined, a name used twice, a
            declared type contradicts the operator.
        UnsupportedError: it imports an unsupported version of the default domain.
    """
    return _Reader(model, frozenset(static_inputs)).program()


class _Reader:
    """State of one read: the builder, and the core value of each ONNX value."""

    def __init__(self, model: onnx_ir.Model, static: frozenset[str]) -> None:
        self.model = model
        self.static = static
        self.opset = _opset(model)
        self.builder = _C.GraphBuilder()
        self.values: dict[onnx_ir.Value, _C.Value] = {}
        # Create constants only when something reads them: most only determine shapes.
        self.pending: dict[onnx_ir.Value, tuple[str, onnx_ir.TensorProtocol]] = {}
        self.names: set[str] = set()
        self.slots: dict[str, tuple[int, ...]] = {}
        self.outer: dict[str, tuple[str, ...]] = {}

    def program(self) -> Program:
        graph = self.model.graph
        for value in graph.inputs:
            is_weight = value.name in self.static or value.name in graph.initializers
            self._add_input(value, is_weight)
        for value in graph.initializers.values():
            if value not in self.values:
                self._add_constant(value, value.const_value)
        for node in graph:
            self._add_node(node)
        outputs = [self._value(value, "the graph's outputs") for value in graph.outputs]
        self.builder.set_outputs(outputs, [str(value.name) for value in graph.outputs])
        return Program(
            self.builder.finish(),
            self.model,
            self.opset,
            self.slots,
            self.outer,
            self.static | frozenset(map(str, graph.initializers)),
        )

    def _claim(self, name: str | None, what: str) -> str:
        if not name:
            raise ModelFormatError(f"{what} has no name")
        if name in self.names:
            raise ModelFormatError(f"{what} has a name that is already taken", got=name)
        self.names.add(name)
        return name

    def _add_input(self, value: onnx_ir.Value, is_weight: bool) -> None:
        name = self._claim(value.name, "a graph input")
        self.values[value] = (self.builder.add_input(name, core_type(value), is_weight), 0)

    def _add_constant(self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol | None) -> None:
        """Add an initializer: a Constant node if it is small, otherwise a weight without content."""
        if tensor is None:
            raise ModelFormatError("an initializer has no value", got=value.name)
        if self._is_content(tensor):
            self._claim(value.name, "an initializer")
            self.pending[value] = (str(value.name), tensor)
        else:
            self._add_input(value, is_weight=True)

    def _is_content(self, tensor: onnx_ir.TensorProtocol) -> bool:
        """Whether the core can hold a constant's content."""
        dtype = dtype_name(tensor.dtype)
        if tensor.size > _MAX_CONSTANT or dtype_of(dtype) is None or dtype in ("c64", "c128"):
            return False
        return dtype != "u64" or bool((tensor.numpy() < 2**63).all())

    def _constant_leaf(self, node_name: str, value_name: str, tensor: onnx_ir.TensorProtocol) -> int:
        """Add a Constant node with the tensor's content."""
        dtype, content = dtype_name(tensor.dtype), tensor.numpy().reshape(-1)
        attrs: dict[str, Any] = (
            {"value": content.astype(np.float64).tolist()}
            if dtype in ("f16", "bf16", "f32", "f64")
            else {"int_value": content.astype(np.int64).tolist()}
        )
        type_ = (dtype, [int(dim) for dim in tensor.shape.numpy()])
        return self.builder.add_leaf("Constant", [], attrs, [type_], node_name, [value_name])

    def _value(self, value: onnx_ir.Value, where: str) -> _C.Value:
        if value in self.pending:
            name, tensor = self.pending.pop(value)
            self.values[value] = (self._constant_leaf(name, str(value.name), tensor), 0)
        found = self.values.get(value)
        if found is None:
            raise ModelFormatError("a value is read before it is made", where=where, got=value.name)
        return found

    def _add_node(self, node: onnx_ir.Node) -> None:
        where = f"node {node.name} ({node.op_type})"
        outputs = [output for output in node.outputs if output.name]
        for output in outputs:
            self._claim(output.name, f"an output of {where}")
        if not node.name:
            raise ModelFormatError("a node has no name", where=where)
        if node.op_type == "Constant" and node.domain in STANDARD_DOMAINS and self._add_constant_node(node):
            return
        is_plain = self._has_plain_outputs(node) and not reads_integers(node)
        form = typed_form(node, self._content) if is_plain else None
        if form is not None and any(isinstance(each, bytes) for each in dict(form.attrs).values()):
            form = None  # a string that is not UTF-8, which the core cannot hold
        if form is not None and self._add_typed(node, form, where):
            return
        self._add_opaque(node, where)

    def _add_constant_node(self, node: onnx_ir.Node) -> bool:
        tensor = constant_tensor(node)
        if tensor is None:
            return False
        output = node.outputs[0]
        if self._is_content(tensor):
            self.pending[output] = (str(node.name), tensor)
        else:
            # The core only needs its type; the bytes stay in the source model.
            type_ = (dtype_name(tensor.dtype), [int(dim) for dim in tensor.shape.numpy()])
            self.values[output] = (self.builder.add_input(str(output.name), type_, True), 0)
        return True

    def _content(self, value: onnx_ir.Value) -> NDArray[Any] | None:
        """The content of a constant, unless it is too large."""
        producer = value.producer()
        tensor = value.const_value if producer is None else None
        if producer is not None and producer.op_type == "Constant" and producer.domain in STANDARD_DOMAINS:
            tensor = constant_tensor(producer)
        if tensor is None or tensor.size > _MAX_CONTENT or value.is_graph_input():
            return None
        return np.asarray(tensor.numpy())

    def _has_plain_outputs(self, node: onnx_ir.Node) -> bool:
        """Whether no output beyond those of the core's operator is read."""
        if node.op_type in ("Split", "TopK"):
            return all(output.name for output in node.outputs)
        return all(not output.uses() and not output.is_graph_output() for output in node.outputs[1:])

    def _add_typed(self, node: onnx_ir.Node, form: TypedForm, where: str) -> bool:
        inputs: list[_C.Value] = []
        for slot in form.slots:
            value = node.inputs[slot]
            inputs.append(None if value is None else self._value(value, where))
        count = len(node.outputs) if form.op in ("Split", "TopK") else 1
        names = [str(output.name) for output in node.outputs[:count]]
        try:
            added = self.builder.add_node(form.op, inputs, dict(form.attrs), str(node.name), names)
        except ModelFormatError:
            # The core cannot type this form (because of an unknown rank, say): keep it as an opaque node.
            return False
        for index, output in enumerate(node.outputs[:count]):
            inferred, declared = self.builder.type((added, index)), core_type(output)
            if contradicts(declared, inferred):
                raise ModelFormatError(
                    "a value is declared with a type it cannot have",
                    where=f"{where}, output {output.name}",
                    expected=inferred,
                    got=declared,
                )
            self.values[output] = (added, index)
        self.slots[str(node.name)] = form.slots
        return True

    def _add_opaque(self, node: onnx_ir.Node, where: str) -> None:
        inputs = [None if value is None else self._value(value, where) for value in node.inputs]
        outer = list(outer_values(node))
        inputs += [self._value(value, f"a subgraph of {where}") for value in outer]
        if outer:
            self.outer[str(node.name)] = tuple(str(value.name) for value in outer)
        names = [output.name or f"{node.name}.{index}" for index, output in enumerate(node.outputs)]
        types = [core_type(output) for output in node.outputs]
        attrs = {"op": _opaque_op(node)}
        added = self.builder.add_leaf("Opaque", inputs, attrs, types, str(node.name), names)
        for index, output in enumerate(node.outputs):
            self.values[output] = (added, index)


def _opset(model: onnx_ir.Model) -> int:
    """The version of the default domain that the model imports."""
    imports = model.graph.opset_imports
    version = imports.get("", imports.get("ai.onnx"))
    if version is None:
        return NATIVE
    if not OLDEST <= version <= NEWEST:
        raise UnsupportedError(
            "the model imports a version of the ONNX operators that is not read",
            expected=f"{OLDEST} to {NEWEST}",
            got=version,
            todo="convert the model with onnx.version_converter",
        )
    return version


def reads_integers(node: onnx_ir.Node) -> bool:
    """Whether the first operand of a node is dequantised, maybe in another shape.

    Runtimes compute such a node, with what dequantises its operands and quantises its result, in integers.
    A substitution would see floats: it would merge weights as floats, or move into the midst of the three.
    """
    value = node.inputs[0] if node.inputs else None
    producer = None if value is None else value.producer()
    while producer is not None and producer.op_type in _VIEWS:
        value = producer.inputs[0]
        producer = None if value is None else value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def constant_tensor(node: onnx_ir.Node) -> onnx_ir.TensorProtocol | None:
    """The tensor of a Constant node; None for strings and sparse tensors."""
    for name, attribute in node.attributes.items():
        if name == "value":
            tensor: onnx_ir.TensorProtocol = attribute.as_tensor()
            return None if tensor.dtype == onnx_ir.DataType.STRING else tensor
        if name in ("value_int", "value_ints"):
            return onnx_ir.tensor(np.asarray(attribute.value, dtype=np.int64))
        if name in ("value_float", "value_floats"):
            return onnx_ir.tensor(np.asarray(attribute.value, dtype=np.float32))
    return None


def _opaque_op(node: onnx_ir.Node) -> str:
    """Operator name and a digest of the attributes, so that nodes with different attributes differ."""
    digest = hashlib.sha256()
    for name in sorted(node.attributes):
        digest.update(f"{name}={attribute_text(node.attributes[name])};".encode())
    return f"{node.domain or 'ai.onnx'}::{node.op_type}#{digest.hexdigest()[:12]}"


def attribute_text(attribute: onnx_ir.Attr) -> str:
    """A text that is equal for equal attributes; tensors and subgraphs are hashed."""
    if attribute.type == onnx_ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.dtype == onnx_ir.DataType.STRING:
            return str(tensor.numpy().tolist())
        return f"{tensor.dtype} {tensor.shape} {hashlib.sha256(tensor.tobytes()).hexdigest()}"
    if of_attribute(attribute):
        return hashlib.sha256(str(attribute.value).encode()).hexdigest()
    return str(attribute.value)
