"""Converts a C++ graph to an ONNX model.

Unchanged nodes become the source's own nodes again, with their names and attributes, in the form of the
source's opset; only nodes that substitutions created are written in the form of `opsets.NATIVE`. If that is
another opset, `older_opset.lower_opset` lowers them to the source's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir
from numpy.typing import NDArray

from torchrlopt import _C
from torchrlopt.onnx.attributes import make_attribute
from torchrlopt.onnx.forms.to_onnx import np_dtype, onnx_form
from torchrlopt.onnx.forms.types import dtype_of
from torchrlopt.onnx.opsets import CORE_DOMAIN, FIRST_WITH, FORM, OLDEST_IR_VERSION, STANDARD_DOMAINS
from torchrlopt.onnx.program import Program
from torchrlopt.onnx.saving import PRODUCER
from torchrlopt.onnx.subgraphs import of_attribute

KEEPS_BITS = "keeps_bits"
"""Key in the `meta` of a node whose last bit may decide what a later operator returns."""


def write(program: Program) -> onnx_ir.Model:
    """Write a program as a new, typed ONNX model with the inputs, outputs and names of `program.source`."""
    return _Writer(program).model()


def fresh_prefix(source: onnx_ir.Model) -> str:
    """A name prefix for nodes and values that substitutions create; no name in the source starts with it.

    Usually `rlopt_`, unless the source is itself one of our results.
    """
    nodes = list(source.graph.all_nodes())
    names = [value.name for value in (*source.graph.inputs, *source.graph.initializers.values())]
    names += [node.name for node in nodes] + [output.name for node in nodes for output in node.outputs]
    taken = [name for name in names if name and name.startswith("rlopt_")]
    tries = (f"rlopt_{number}_" if number else "rlopt_" for number in itertools.count())
    return next(prefix for prefix in tries if not any(name.startswith(prefix) for name in taken))


def node_name(node: Mapping[str, Any], prefix: str) -> str:
    """The name of a core node in the written model: its own, or one derived from its id."""
    return str(node["name"]) or f"{prefix}{node['id']}"


class _Writer:
    """State of one write: the ONNX value of each graph value."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.graph = program.graph
        source = program.source.graph
        self.source_nodes = {str(node.name): node for node in source}
        self.source_values: dict[str, onnx_ir.Value] = {str(value.name): value for value in source.inputs}
        self.source_values |= source.initializers
        for node in source:
            self.source_values |= {str(output.name): output for output in node.outputs if output.name}
        self.values: dict[tuple[int, int], onnx_ir.Value] = {}
        self.by_name: dict[str, onnx_ir.Value] = {}
        self.nodes: list[onnx_ir.Node] = []
        self.inputs: list[onnx_ir.Value] = []
        self.initializers: list[onnx_ir.Value] = []
        self.opset = program.opset
        self.prefix = fresh_prefix(program.source)
        self.output_names = set(self.graph.output_names)
        self.num_constants = 0

    def model(self) -> onnx_ir.Model:
        source = self.program.source
        for value in source.graph.inputs:
            self.inputs.append(self._copy(value))
            if value.name in source.graph.initializers:
                self._initializer(self.by_name[str(value.name)], value)
        for id_ in self.graph.topological_order():
            self._add(self.graph.node(id_))
        outputs = self._outputs()
        for old, new in zip(
            (*source.graph.inputs, *source.graph.outputs), (*self.inputs, *outputs), strict=True
        ):
            new.doc_string = old.doc_string
            new.metadata_props.update(old.metadata_props)
        imports = dict(source.graph.opset_imports)
        imports.pop("ai.onnx", None)
        imports[""] = self.opset
        if any(node.domain == CORE_DOMAIN for node in self.nodes):
            imports[CORE_DOMAIN] = 1
        graph = onnx_ir.Graph(
            self.inputs,
            outputs,
            nodes=self.nodes,
            initializers=self.initializers,
            opset_imports=imports,
            name=source.graph.name,
            doc_string=source.graph.doc_string,
            metadata_props=dict(source.graph.metadata_props),
        )
        return onnx_ir.Model(
            graph,
            ir_version=max(source.ir_version, OLDEST_IR_VERSION),
            producer_name=PRODUCER,
            domain=source.domain,
            model_version=source.model_version,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props),
            functions=[function.clone() for function in source.functions.values()],
        )

    # ---- values

    def _copy(self, value: onnx_ir.Value, name: str | None = None) -> onnx_ir.Value:
        """A new value with the name and type of a source value."""
        copy = onnx_ir.Value(
            name=name or value.name, type=value.type, shape=value.shape.copy() if value.shape else value.shape
        )
        self.by_name[str(copy.name)] = copy
        return copy

    def _typed(self, name: str, type_: _C.TensorType) -> onnx_ir.Value:
        """A new value with a type of the core."""
        value = onnx_ir.Value(name=name)
        _set_type(value, type_)
        self.by_name[name] = value
        return value

    def _initializer(self, value: onnx_ir.Value, source: onnx_ir.Value) -> None:
        value.const_value = source.const_value
        self.initializers.append(value)

    def _inputs(self, values: Sequence[_C.Value]) -> list[onnx_ir.Value | None]:
        return [None if value is None else self.values[value] for value in values]

    # ---- nodes

    def _add(self, node: Mapping[str, Any]) -> None:
        name, op = str(node["name"]), str(node["op"])
        if op in ("Input", "Weight"):
            self.values[(node["id"], 0)] = self._leaf(node["output_names"][0] or name)
            return
        source = self.source_nodes.get(name) if name else None
        if op == "Constant":
            self._add_constant(node, source)
        elif source is not None:
            self._restore(node, source)
        else:
            self._create(node)
        if node["keeps_bits"]:
            producer = self.values[(node["id"], 0)].producer()
            assert producer is not None
            producer.meta[KEEPS_BITS] = True

    def _leaf(self, name: str) -> onnx_ir.Value:
        """An input, an initializer or a large constant of the source, by name."""
        if name in self.by_name:
            return self.by_name[name]
        source = self.source_values[name]
        producer = source.producer()
        if producer is not None:
            return self._source_constant(source)
        value = self._copy(source)
        self._initializer(value, source)
        return value

    def _source_constant(self, value: onnx_ir.Value) -> onnx_ir.Value:
        """The copy of a source value that is constant; created on first use."""
        name = str(value.name)
        if name in self.by_name:
            return self.by_name[name]
        producer = value.producer()
        if producer is None:
            copy = self._copy(value)
            self._initializer(copy, value)
            return copy
        output = self._copy(value)
        self._append(producer.domain, producer.op_type, [], producer.attributes, [output], str(producer.name))
        return output

    def _add_constant(self, node: Mapping[str, Any], source: onnx_ir.Node | None) -> None:
        if source is not None:
            self.values[(node["id"], 0)] = self._source_constant(source.outputs[0])
            return
        name = str(node["name"])
        if name in self.source_values and self.source_values[name].producer() is None:
            self.values[(node["id"], 0)] = self._source_constant(self.source_values[name])
            return
        dtype, dims = node["types"][0]
        content = node["attrs"]["value"] or node["attrs"]["int_value"]
        array = np.asarray(content).astype(np_dtype(dtype)).reshape(dims)
        value = self._typed(self._fresh_name(node, 0), node["types"][0])
        self._append_constant(value, array)
        self.values[(node["id"], 0)] = value

    def _append_constant(self, value: onnx_ir.Value, array: NDArray[Any]) -> None:
        tensor = onnx_ir.tensor(array, dtype=value.dtype)
        attribute = onnx_ir.Attr("value", onnx_ir.AttributeType.TENSOR, tensor)
        self._append("", "Constant", [], {"value": attribute}, [value], str(value.name))

    def _append(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[onnx_ir.Value | None],
        attributes: Mapping[str, onnx_ir.Attr],
        outputs: Sequence[onnx_ir.Value],
        name: str,
    ) -> None:
        kept = list(inputs)
        while kept and kept[-1] is None:
            kept.pop()
        if domain in STANDARD_DOMAINS:
            self.opset = max(self.opset, FIRST_WITH.get(op_type, 0))
        self.nodes.append(
            onnx_ir.Node(domain, op_type, kept, attributes.values(), outputs=outputs, name=name)
        )

    def _restore(self, node: Mapping[str, Any], source: onnx_ir.Node) -> None:
        """Write a source node with its current inputs."""
        name = str(source.name)
        current = self._inputs(node["inputs"])
        inputs: list[onnx_ir.Value | None]
        attributes: Mapping[str, onnx_ir.Attr] = source.attributes
        if node["op"] == "Opaque":
            inputs = current[: len(source.inputs)]
            attributes = self._with_outer(source, current[len(source.inputs) :])
        else:
            slots = self.program.slots[name]
            inputs = [
                None if value is None or index in slots else self._source_constant(value)
                for index, value in enumerate(source.inputs)
            ]
            for slot, value in zip(slots, current, strict=True):
                inputs[slot] = value
        outputs = [
            self._copy(output, self._free_name(str(output.name))) if output.name else onnx_ir.Value(name="")
            for output in source.outputs
        ]
        for index, output in enumerate(outputs):
            self.values[(node["id"], index)] = output
            if index < len(node["types"]) and (output.shape is None or output.dtype is None):
                _set_type(output, node["types"][index])
        self._append(source.domain, source.op_type, inputs, attributes, outputs, name)
        self.nodes[-1].meta[FORM] = self.program.opset

    def _constant_input(self, node: str, array: NDArray[Any]) -> onnx_ir.Value:
        """A new constant for an input slot of a node."""
        self.num_constants += 1
        dtype = onnx_ir.tensor(array).dtype
        value = onnx_ir.Value(
            name=f"{self.prefix}const_{self.num_constants}_{node}",
            type=onnx_ir.TensorType(dtype),
            shape=onnx_ir.Shape(array.shape),
        )
        self._append_constant(value, array)
        return value

    def _with_outer(
        self, source: onnx_ir.Node, current: Sequence[onnx_ir.Value | None]
    ) -> Mapping[str, onnx_ir.Attr]:
        """Attributes whose subgraphs read the current values in place of the source's."""
        names = self.program.outer.get(str(source.name))
        if names is None:
            return source.attributes
        replaced = {
            self.source_values[name]: value
            for name, value in zip(names, current, strict=True)
            if value is not None
        }
        return {name: _rebound(attribute, replaced) for name, attribute in source.attributes.items()}

    def _create(self, node: Mapping[str, Any]) -> None:
        """Write a node that a substitution created."""
        current = self._inputs(node["inputs"])
        dtypes = ["other" if v is None else self.graph.type(v)[0] for v in node["inputs"]]
        form = onnx_form(node["op"], node["attrs"], dtypes, len(current), len(node["types"]))
        label = f"{self.prefix}{node['id']}"
        inputs: list[onnx_ir.Value | None] = [None] * (max((*form.slots, *form.constants), default=-1) + 1)
        for slot, value in zip(form.slots, current, strict=True):
            inputs[slot] = value
        for slot, array in form.constants.items():
            inputs[slot] = self._constant_input(label, array)
        outputs = [
            self._typed(self._fresh_name(node, index), type_) for index, type_ in enumerate(node["types"])
        ]
        for index, output in enumerate(outputs):
            self.values[(node["id"], index)] = output
        attributes = {
            key: value if isinstance(value, onnx_ir.Attr) else make_attribute(key, value)
            for key, value in form.attributes.items()
        }
        self._append(form.domain, form.op_type, inputs, attributes, outputs, label)

    # ---- names and outputs

    def _fresh_name(self, node: Mapping[str, Any], index: int) -> str:
        suffix = f".{index}" if len(node["types"]) > 1 else ""
        return f"{self.prefix}{node['id']}{suffix}"

    def _free_name(self, name: str) -> str:
        """`name`, unless it is a graph output that another value now provides."""
        if name not in self.output_names:
            return name
        slot = self.graph.output_names.index(name)
        provider = self.graph.outputs[slot]
        assert provider is not None  # graph outputs are always there
        names = self.graph.node(provider[0])["output_names"]
        same = provider[1] < len(names) and names[provider[1]] == name
        return name if same else f"{name}.inner"

    def _outputs(self) -> list[onnx_ir.Value]:
        """The graph's outputs; an input, or what is two outputs, gets their names by an Identity."""
        outputs = []
        for name, value in zip(self.graph.output_names, self.graph.outputs, strict=True):
            assert value is not None  # graph outputs are always there
            found = self.values[value]
            if found.name == name:
                outputs.append(found)
            elif (
                found.producer() is not None and found.name not in self.output_names and found not in outputs
            ):
                found.name = name
                outputs.append(found)
            else:
                renamed = self._typed(name, self.graph.type(value))
                self._append("", "Identity", [found], {}, [renamed], f"{self.prefix}output_{name}")
                outputs.append(renamed)
        return outputs


def _set_type(value: onnx_ir.Value, type_: _C.TensorType) -> None:
    """Set the core's type on a value; what the core does not know stays undeclared."""
    dtype, dims = dtype_of(type_[0]), type_[1]
    if dtype is not None and value.dtype is None:
        value.type = onnx_ir.TensorType(dtype)
    if dims is not None and value.shape is None:
        value.shape = onnx_ir.Shape(dims)


def _rebound(attribute: onnx_ir.Attr, replaced: Mapping[onnx_ir.Value, onnx_ir.Value]) -> onnx_ir.Attr:
    """The attribute, with subgraphs copied to read other outer values."""
    copies = [graph.clone(allow_outer_scope_values=True) for graph in of_attribute(attribute)]
    if not copies:
        return attribute
    for copy in copies:
        for node in copy.all_nodes():
            for index, value in enumerate(node.inputs):
                if value is not None and value in replaced:
                    node.replace_input_with(index, replaced[value])
    content = copies[0] if attribute.type == onnx_ir.AttributeType.GRAPH else copies
    return onnx_ir.Attr(attribute.name, attribute.type, content)
