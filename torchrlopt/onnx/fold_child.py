"""Folds constants by onnxscript, with limits, see `limited`. onnxscript loads slowly: a separate file."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants

from torchrlopt.onnx.files import name_nodes
from torchrlopt.onnx.forms.from_onnx import OPERATORS
from torchrlopt.onnx.forms.types import NO_NAMES
from torchrlopt.onnx.known_sizes import name_sizes
from torchrlopt.onnx.opsets import STANDARD_DOMAINS

_MOST_BYTES = 1 << 13  # of an operand or a result: sizes, axes and masks of them, no weights

_CLASSES = ("Elementwise", "Host", "Movement", "Reduction", "Transcendental", "View")

_EVALUATED = frozenset(name for name, info in OPERATORS.items() if info["cost_class"] in _CLASSES) | {
    "CastLike", "NonZero", "OneHot", "Range",
}  # fmt: skip
"""What sizes, axes and masks are made of. ONNX 1.23 evaluates some others wrongly, such as LRN and
LpNormalization, and draws numbers, as for Bernoulli and Dropout.
"""

_MERGED = {*OPERATORS, "Range", "ReduceProd", "ScatterElements"} - {"ConstantOfShape"}
"""What is computed once if it is computed twice. The check counts the nodes of operators that it does not
run; tensors that are filled become weights, of which one that has several readers is folded into one only.
"""

_MOST_COMPARED = 16  # elements: sizes, axes, factors

_APART = "torchrlopt.apart"
"""How domains begin that no model imports, so that onnxscript leaves their nodes alone."""


def _may_fold(node: onnx_ir.Node) -> bool | None:
    """Whether to fold a node; None: as onnxscript sees fit.

    It leaves ConstantOfShape alone lest the model grow. Some runtimes want outputs to be computed by nodes.
    """
    if node.op_type not in _EVALUATED or node.domain not in STANDARD_DOMAINS:
        return False
    if any(value.is_graph_output() for value in node.outputs):
        return False
    if any(value.dtype == onnx_ir.DataType.STRING for value in node.outputs):
        return False  # onnxscript makes tensors of texts that cannot be written
    if any(value.shape is not None and _least_size(value.shape) > _MOST_BYTES for value in node.outputs):
        return False  # onnxscript would compute it first
    if node.op_type != "ConstantOfShape" or node.inputs[0] is None:
        return None
    sizes = onnx_ir.convenience.get_const_tensor(node.inputs[0])
    return sizes is not None and math.prod(sizes.numpy().tolist()) <= _MOST_BYTES


def _least_size(shape: onnx_ir.Shape) -> int:
    """Number of elements, with 1 for each size that is not known."""
    return math.prod(dim for dim in shape if isinstance(dim, int))


def main(data: bytes, arguments: Sequence[str]) -> bytes:
    """Evaluate expressions over small constants and over sizes that are known.

    Args:
        data: the model; its large weights are declared without content.
        arguments: names of these weights, and of what a call may override.
    """
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    model = onnx_ir.from_proto(proto)
    graph = model.graph
    weights = []
    for name in arguments:  # as inputs, they are not read
        value = graph.initializers.pop(name)
        value.const_value = None
        if value not in graph.inputs:
            graph.inputs.append(value)
            weights.append(value)
    inner = _forget_shapes(graph)
    name_sizes(model)
    # The check finds a node that has no converter by its name, which may be made of that of an output.
    name_nodes(graph)
    # onnxscript takes a size for positive, but a sum of it and a constant may be negative. An If of which it
    # keeps a branch would have no counterpart in the check. For Einsum see known_sizes.
    with _apart([node for node in graph.all_nodes() if node.op_type in ("Abs", "Einsum", "If")]):
        fold_constants(
            model,
            onnx_shape_inference=True,
            input_size_limit=_MOST_BYTES,
            output_size_limit=_MOST_BYTES,
            should_fold=_may_fold,
        )
    name_sizes(model)  # of what has only now become a constant
    # The pass gives an operand the name of the output, even if it has that of another output.
    last = [node for node in graph.all_nodes() if any(value.is_graph_output() for value in node.outputs)]
    with _apart([node for node in last if node.op_type == "Identity"]):
        common.IdentityEliminationPass()(model)
    common.DeduplicateInitializersPass(_MOST_COMPARED)(model)
    with _apart(
        [
            node
            for node in graph.all_nodes()
            if node.op_type not in _MERGED or node.domain not in STANDARD_DOMAINS
        ]
    ):
        for each in (graph, *graph.subgraphs()):  # the pass leaves bodies alone
            body = onnx_ir.Model(each, ir_version=model.ir_version)
            common.CommonSubexpressionEliminationPass(_MOST_COMPARED)(body)
    common.RemoveUnusedNodesPass()(model)
    for value, shape in inner.items():
        value.shape = shape
    for value in weights:
        graph.inputs.remove(value)
    serialised: bytes = onnx_ir.to_proto(model).SerializeToString()
    return serialised


@contextlib.contextmanager
def _apart(nodes: Sequence[onnx_ir.Node]) -> Iterator[None]:
    """Hide nodes from passes, and that they are of one kind."""
    hidden = {node: node.domain for node in nodes}
    for number, node in enumerate(hidden):
        node.domain = f"{_APART}.{number}"
    yield
    for node, domain in hidden.items():
        node.domain = domain


def _forget_shapes(graph: onnx_ir.Graph) -> dict[onnx_ir.Value, onnx_ir.Shape]:
    """Remove what may not hold, in place: sizes in a loop, which may grow, and names that are none.

    Returns:
        The shapes of the values in bodies.
    """
    inner = {}
    for each in (graph, *graph.subgraphs()):
        for value in (*each.inputs, *(value for node in each for value in node.outputs)):
            shape = value.shape
            if shape is None:
                continue
            named = [dim if isinstance(dim, int) or dim.value not in NO_NAMES else None for dim in shape]
            value.shape = onnx_ir.Shape(named)
            if each is not graph:
                inner[value], value.shape = shape, None
    return inner
