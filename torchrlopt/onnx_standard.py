"""ONNX models for other tools: our fused operators taken apart into standard ones.

A plan may end in `rlopt::FusedConv` and `rlopt::FusedMatMul`, which only our executors know. A file that
the user asked for holds standard operators only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir

from torchrlopt.errors import UnsupportedError

_EPILOGUE_ATTRIBUTES = ("activation", "alpha", "beta")
_PLAIN = ("Relu", "Gelu", "Sigmoid", "Tanh", "HardSwish")


def standardise(model: onnx_ir.Model) -> None:
    """Replace the nodes of domain `rlopt` by standard nodes that compute the same; in place.

    Raises:
        UnsupportedError: a node of the domain has no standard form.
    """
    graph = model.graph
    for node in list(graph):
        if node.domain != "rlopt":
            continue
        if node.op_type not in ("FusedConv", "FusedMatMul"):
            raise UnsupportedError(
                "an operator of ours has no standard form", where=str(node.name), got=node.op_type
            )
        parts = _Expansion(node).parts()
        graph.insert_before(node, parts)
        onnx_ir.convenience.replace_all_uses_with(
            node.outputs[0], parts[-1].outputs[0], replace_graph_outputs=True
        )
        last, output = parts[-1].outputs[0], node.outputs[0]
        last.type, last.shape = output.type, output.shape
        name = output.name
        graph.remove(node, safe=True)
        last.name = name
    graph.opset_imports.pop("rlopt", None)


class _Expansion:
    """The standard nodes that one fused node becomes."""

    def __init__(self, node: onnx_ir.Node) -> None:
        self.node = node
        self.nodes: list[onnx_ir.Node] = []

    def parts(self) -> list[onnx_ir.Node]:
        """`activation(product(x, w) + b + z)`, in order."""
        node = self.node
        x, w, bias, addend = (*node.inputs, None, None)[:4]
        if node.op_type == "FusedConv":
            attributes = [a for a in node.attributes.values() if a.name not in _EPILOGUE_ATTRIBUTES]
            attributes = [a for a in attributes if a.type != onnx_ir.AttributeType.INTS or len(a.as_ints())]
            value = self._add("Conv", [x, w, bias] if bias is not None else [x, w], attributes)
        else:
            value = self._add("MatMul", [x, w])
            if bias is not None:
                value = self._add("Add", [value, bias])
        if addend is not None:
            value = self._add("Add", [value, addend])
        self._activate(value)
        return self.nodes

    def _add(
        self, op: str, inputs: Sequence[onnx_ir.Value | None], attributes: Sequence[onnx_ir.Attr] = ()
    ) -> onnx_ir.Value:
        output = onnx_ir.Value(
            name=f"{self.node.name}.{len(self.nodes)}",
            type=self.node.outputs[0].type,
            shape=self.node.outputs[0].shape,
        )
        name = f"{self.node.name}.{op}_{len(self.nodes)}"
        self.nodes.append(onnx_ir.Node("", op, inputs, attributes, outputs=[output], name=name))
        return output

    def _constant(self, number: float) -> onnx_ir.Value:
        """A scalar of the dtype of the node's output."""
        dtype = self.node.outputs[0].dtype
        if dtype is None:
            raise UnsupportedError("a fused node has no type", where=str(self.node.name))
        tensor = onnx_ir.tensor(np.asarray(number, dtype=dtype.numpy()), dtype=dtype)
        value = self._add("Constant", [], [onnx_ir.Attr("value", onnx_ir.AttributeType.TENSOR, tensor)])
        value.shape = onnx_ir.Shape([])
        return value

    def _activate(self, value: onnx_ir.Value) -> None:
        """The activation that the node names, applied to `value`."""
        attributes = self.node.attributes
        name = attributes["activation"].as_string() if "activation" in attributes else ""
        alpha, beta = (attributes[key].as_float() if key in attributes else 0.0 for key in ("alpha", "beta"))
        if name == "":
            return
        if name in _PLAIN:
            self._add(name, [value])
        elif name == "GeluTanh":
            self._add("Gelu", [value], [onnx_ir.AttrString("approximate", "tanh")])
        elif name == "Swish":
            self._add("Mul", [value, self._add("Sigmoid", [value])])
        elif name == "HardSigmoid":
            self._add(name, [value], [onnx_ir.AttrFloat32("alpha", alpha), onnx_ir.AttrFloat32("beta", beta)])
        elif name in ("LeakyRelu", "Elu"):
            self._add(name, [value], [onnx_ir.AttrFloat32("alpha", alpha)])
        elif name == "Clip":
            self._add(name, [value, self._constant(alpha), self._constant(beta)])
        else:
            raise UnsupportedError("an activation has no standard form", where=str(self.node.name), got=name)
