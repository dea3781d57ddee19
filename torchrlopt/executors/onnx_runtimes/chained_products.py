"""Finds graphs that crash OpenVINO while it fuses a chain of small products into one kernel.

Its CPU plugin fuses consecutive small matrix products, with the elementwise operators between and after them,
into one kernel ("snippet"). A chain ends when the kernel has no registers left. If the next operator adds a
value from another such kernel, the plugin reads the body of the first one, which it has not kept: a null
pointer (`tokenize_node`, src/common/snippets/src/utils/tokenization_utils.cpp, seen in 2026.4.1; the pass
exists since 2025.2). Residual blocks with few rows and at most 256 columns can trigger this, for example in a
transformer whose last layers compute the row of one token only.
"""

from __future__ import annotations

import onnx_ir

_PRODUCTS = frozenset({"Gemm", "MatMul"})
_MOST_COLUMNS = 256
_ELEMENTWISE = frozenset(
    {
        "Abs", "Add", "Ceil", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid",
        "HardSwish", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mod", "Mul", "Neg", "PRelu", "Pow", "Relu",
        "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Sub", "Swish",
        "Tanh",
    }
)  # fmt: skip


def may_crash(model: onnx_ir.Model, fixed: frozenset[str]) -> bool:
    """Whether a chain of at least two products reads the result of an operator outside the chain.

    The number of registers left is not predicted, so this reports more graphs than actually crash.

    Args:
        model: its nodes are in topological order.
        fixed: names of the inputs that become constants.
    """
    varying = {value for value in model.graph.inputs if value.name not in fixed}
    for node in model.graph:
        if any(value in varying for value in node.inputs):
            varying.update(node.outputs)
    return any(
        _chain_reads_another(node, varying) for node in model.graph if _is_small_product(node, varying)
    )


def _chain_reads_another(product: onnx_ir.Node, varying: set[onnx_ir.Value]) -> bool:
    num_products, value, reads_another = 1, product.outputs[0], False
    while len(uses := value.uses()) == 1:
        ((node, at),) = uses
        if at == 0 and _is_small_product(node, varying):
            num_products += 1
        elif node.op_type in _ELEMENTWISE:
            others = [x for x in node.inputs if x is not None and x is not value and x in varying]
            reads_another |= any(other.producer() is not None for other in others)
        else:
            break
        if num_products > 1 and reads_another:
            return True
        value = node.outputs[0]
    return False


def _is_small_product(node: onnx_ir.Node, varying: set[onnx_ir.Value]) -> bool:
    if node.op_type not in _PRODUCTS or node.inputs[0] not in varying or node.inputs[1] in varying:
        return False
    shape = node.outputs[0].shape
    if shape is None:
        return True
    columns = shape[-1] if len(shape) else 1
    return len(shape) <= 2 and (not isinstance(columns, int) or columns <= _MOST_COLUMNS)
