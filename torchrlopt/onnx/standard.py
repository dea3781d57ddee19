"""Decomposes our fused operators into standard ones, for files and for other runtimes.

A plan may contain `rlopt::FusedConv` and `rlopt::FusedMatMul`, which only our executors implement. A file
that the user requests contains standard operators only.
"""

from __future__ import annotations

import onnx_ir

from torchrlopt.errors import UnsupportedError
from torchrlopt.onnx.expansion import Expansion
from torchrlopt.onnx.opsets import CORE_DOMAIN

_EPILOGUE_ATTRIBUTES = ("activation", "alpha", "beta")
_PLAIN = ("Relu", "Gelu", "Sigmoid", "Tanh", "HardSwish")


def standardise(model: onnx_ir.Model) -> None:
    """Replace nodes of domain `rlopt` by equivalent standard nodes, in place.

    Raises:
        UnsupportedError: a node of the domain has no standard form.
    """
    graph = model.graph
    for node in list(graph):
        if node.domain != CORE_DOMAIN:
            continue
        if node.op_type not in ("FusedConv", "FusedMatMul"):
            raise UnsupportedError(
                "an operator of ours has no standard form", where=str(node.name), got=node.op_type
            )
        parts = Expansion(node)
        _expand(node, parts)
        parts.put_in_place()
    graph.opset_imports.pop(CORE_DOMAIN, None)


def _expand(node: onnx_ir.Node, parts: Expansion) -> None:
    """`activation(product(x, w) + b + z)`, in this order."""
    x, w, bias, addend = (*node.inputs, None, None)[:4]
    if node.op_type == "FusedConv":
        attributes = [a for a in node.attributes.values() if a.name not in _EPILOGUE_ATTRIBUTES]
        attributes = [a for a in attributes if a.type != onnx_ir.AttributeType.INTS or len(a.as_ints())]
        value = parts.add("Conv", [x, w, bias] if bias is not None else [x, w], attributes)
    elif bias is not None and x is not None and w is not None and _ranks(x, w, bias) == [2, 2, 1]:
        value = parts.add("Gemm", [x, w, bias])  # ONNX Runtime has one kernel for a Gemm with its activation
    else:
        value = parts.add("MatMul", [x, w])
        if bias is not None:
            value = parts.add("Add", [value, bias])
    if addend is not None:
        value = parts.add("Add", [value, addend])
    _activate(node, parts, value)


def _ranks(*values: onnx_ir.Value) -> list[int | None]:
    return [None if value.shape is None else len(value.shape) for value in values]


def _activate(node: onnx_ir.Node, parts: Expansion, value: onnx_ir.Value) -> None:
    """Apply the activation that the node names to `value`."""
    attributes = node.attributes
    name = attributes.get_string("activation", "")
    alpha, beta = (attributes.get_float(key, 0.0) for key in ("alpha", "beta"))
    if name == "":
        return
    if name in _PLAIN:
        parts.add(name, [value])
    elif name == "GeluTanh":
        parts.add("Gelu", [value], [onnx_ir.AttrString("approximate", "tanh")])
    elif name == "Swish":
        parts.add("Mul", [value, parts.add("Sigmoid", [value])])
    elif name == "HardSigmoid":
        parts.add(name, [value], [onnx_ir.AttrFloat32("alpha", alpha), onnx_ir.AttrFloat32("beta", beta)])
    elif name in ("LeakyRelu", "Elu"):
        parts.add(name, [value], [onnx_ir.AttrFloat32("alpha", alpha)])
    elif name == "Clip":
        parts.add(name, [value, parts.scalar(alpha, value), parts.scalar(beta, value)])
    else:
        raise UnsupportedError("an activation has no standard form", where=str(node.name), got=name)
