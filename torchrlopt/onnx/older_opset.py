"""Lowers newer operators to older ones, for files and parsers of an older opset.

Parsers trail the standard (TensorRT 10 reads up to opset 22) and files keep their opset, while substitutions
write the form of opset 23 and plans end in its fused operators. Each expansion keeps the order and precision
that the standard specifies, and uses the node patterns that runtimes fuse (scale, product, mask, softmax,
product).

ONNX has function bodies for these operators as well (`onnx.inliner`), but that of Attention has 66 nodes, in
operators of opset 23, which `onnx.version_converter` cannot lower to older opsets.
"""

from __future__ import annotations

import functools
import math

import onnx_ir

from torchrlopt.errors import UnsupportedError
from torchrlopt.onnx.expansion import Expansion
from torchrlopt.onnx.opsets import FORM, NATIVE, STANDARD_DOMAINS
from torchrlopt.onnx.subgraphs import subgraphs

_NARROW = (onnx_ir.DataType.FLOAT16, onnx_ir.DataType.BFLOAT16)

# Before this opset, reductions took their axes as an attribute; ReduceSum changed first, at 13.
_AXES_ARE_INPUT = 18

_OLDER_MODES = {"linear": "bilinear", "cubic": "bicubic"}  # of GridSample, before opset 20


def lower_opset(model: onnx_ir.Model, opset: int) -> None:
    """Lower a model of standard operators to an older opset, in place.

    Args:
        model: values typed if their types are known; no node of domain `rlopt`. Nodes whose `meta` says that
            they have the form of `opset` or of an older one stay unchanged, with their subgraphs.
        opset: target version of the default domain.

    Raises:
        UnsupportedError: an operator, or the form of one, is newer than the opset and has no expansion.
    """
    newest = max(model.graph.opset_imports.get("", 0), NATIVE)
    waiting = list(model.graph)
    while waiting:
        node = waiting.pop()
        form = node.meta.get(FORM, newest)
        if form <= opset:
            continue
        waiting += [inner for graph in subgraphs(node) for inner in graph]
        if node.domain not in STANDARD_DOMAINS:
            continue
        expand = EXPANSIONS.get(node.op_type)
        if expand is not None and not _exists(node.op_type, opset):
            parts = Expansion(node)
            expand(node, parts)
            parts.put_in_place()
            waiting += parts.nodes  # these may be newer than the opset as well
        else:
            _set_older_form(node, opset)
            _check(node, opset, form)
    if model.graph.opset_imports.get("", 0) > opset:
        model.graph.opset_imports[""] = opset


@functools.cache
def _exists(op_type: str, opset: int) -> bool:
    import onnx

    # Opset 18 deprecates its own GroupNormalization, whose scale and bias are per group.
    return bool(onnx.defs.has(op_type, opset)) and not onnx.defs.get_schema(op_type, opset).deprecated


def _set_older_form(node: onnx_ir.Node, opset: int) -> None:
    """Convert an operator to the form that it has in the opset."""
    is_reduction = node.op_type.startswith("Reduce") and node.op_type != "ReduceSum"
    if is_reduction and opset < _AXES_ARE_INPUT and len(node.inputs) > 1:
        axes = None if node.inputs[1] is None else onnx_ir.convenience.get_const_tensor(node.inputs[1])
        if axes is not None:  # else `_check` reports the extra input
            node.attributes["axes"] = onnx_ir.AttrInt64s("axes", axes.numpy().reshape(-1).tolist())
            _drop_input(node, 1)
    elif node.op_type == "GridSample" and opset < 20 and "mode" in node.attributes:
        mode = node.attributes["mode"].as_string()
        node.attributes["mode"] = onnx_ir.AttrString("mode", _OLDER_MODES.get(mode, mode))
    elif node.op_type == "Split" and opset < 18 and "num_outputs" in node.attributes:
        x, axis = node.inputs[0], node.attributes.get_int("axis", 0)
        size = x.shape[axis] if x is not None and x.shape is not None else None
        if isinstance(size, int) and size % len(node.outputs) == 0:  # else the last one is smaller
            del node.attributes["num_outputs"]


def _drop_input(node: onnx_ir.Node, count: int) -> None:
    """Keep the first `count` inputs; remove constants that become unused."""
    dropped = [value for value in node.inputs[count:] if value is not None]
    node.resize_inputs(count)
    for value in dropped:
        producer = value.producer()
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        if producer is not None and producer.graph is not None:
            producer.graph.remove(producer, safe=True)
        elif value.is_initializer() and value.graph is not None:
            del value.graph.initializers[str(value.name)]


def _check(node: onnx_ir.Node, opset: int, form: int) -> None:
    """Refuse an operator, input or attribute that the opset does not have; drop such attributes at defaults.

    `form` is the version that the node has.
    """
    import onnx

    if not _exists(node.op_type, opset):
        raise UnsupportedError(
            "an operator is newer than the opset and has no expansion",
            where=str(node.name),
            expected=f"an operator of opset {opset}",
            got=node.op_type,
        )
    schema = onnx.defs.get_schema(node.op_type, opset)
    if len(node.inputs) > schema.max_input:
        raise UnsupportedError(
            "an input is newer than the opset",
            where=str(node.name),
            expected=f"{node.op_type} of opset {opset}, up to {schema.max_input} inputs",
            got=len(node.inputs),
        )
    for name in [name for name in node.attributes if name not in schema.attributes]:
        newer = onnx.defs.get_schema(node.op_type, min(form, onnx.defs.onnx_opset_version())).attributes
        if name in newer and onnx_ir.from_proto(newer[name].default_value) == node.attributes[name]:
            del node.attributes[name]
        else:
            raise UnsupportedError(
                "an attribute is newer than the opset",
                where=str(node.name),
                expected=f"{node.op_type} of opset {opset}",
                got=name,
            )


def _swish(node: onnx_ir.Node, parts: Expansion) -> None:
    """`x * sigmoid(alpha * x)`."""
    x = parts.operand(0)
    alpha = node.attributes.get_float("alpha", 1.0)
    inner = x if alpha == 1.0 else parts.add("Mul", [x, parts.scalar(alpha, x)])
    parts.add("Mul", [x, parts.add("Sigmoid", [inner])])


def _hard_swish(node: onnx_ir.Node, parts: Expansion) -> None:
    """`x * max(0, min(1, x / 6 + 1 / 2))`."""
    x = parts.operand(0)
    slope, offset = onnx_ir.AttrFloat32("alpha", 1 / 6), onnx_ir.AttrFloat32("beta", 0.5)
    parts.add("Mul", [x, parts.add("HardSigmoid", [x], [slope, offset])])


def _mish(node: onnx_ir.Node, parts: Expansion) -> None:
    """`x * tanh(softplus(x))`."""
    x = parts.operand(0)
    parts.add("Mul", [x, parts.add("Tanh", [parts.add("Softplus", [x])])])


def _gelu(node: onnx_ir.Node, parts: Expansion) -> None:
    """`x / 2 * (1 + erf(x / sqrt(2)))`, or the tanh approximation."""
    x = parts.operand(0)
    half, one = parts.scalar(0.5, x), parts.scalar(1.0, x)
    if node.attributes.get_string("approximate") == "tanh":
        cube = parts.mul(parts.mul(parts.mul(x, x), x), parts.scalar(0.044715, x))
        inner = parts.mul(parts.add("Add", [x, cube]), parts.scalar(math.sqrt(2 / math.pi), x))
        part = parts.add("Tanh", [inner])
    else:
        part = parts.add("Erf", [parts.add("Div", [x, parts.scalar(math.sqrt(2), x)])])
    parts.add("Mul", [parts.mul(x, half), parts.add("Add", [part, one])])


def _layer_normalization(node: onnx_ir.Node, parts: Expansion) -> None:
    """`(x - mean) / sqrt(variance + epsilon) * scale + bias`; the quotient in float32 if x is narrower."""
    if sum(bool(output.uses()) or output.is_graph_output() for output in node.outputs[1:]):
        raise UnsupportedError("a normalisation with several outputs", where=str(node.name))
    x, scale = parts.operand(0), parts.operand(1)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    rank = parts.rank(x)
    is_wide = x.dtype in _NARROW and node.attributes.get_int("stash_type", 1) == 1
    wide = parts.cast(x, onnx_ir.DataType.FLOAT) if is_wide else x
    axes = parts.ints(list(range(node.attributes.get_int("axis", -1) % rank, rank)))
    centred = parts.add("Sub", [wide, parts.add("ReduceMean", [wide, axes], like=wide)], like=wide)
    centred.shape = x.shape
    variance = parts.add("ReduceMean", [parts.mul(centred, centred), axes], like=wide)
    shifted = parts.add(
        "Add", [variance, parts.scalar(node.attributes.get_float("epsilon", 1e-5), wide)], like=wide
    )
    normal = parts.add("Div", [centred, parts.add("Sqrt", [shifted], like=wide)], like=wide)
    narrow = parts.cast(normal, x.dtype) if is_wide and x.dtype is not None else normal
    scaled = parts.add("Mul", [narrow, scale])
    if bias is not None:
        parts.add("Add", [scaled, bias])


def _group_normalization(node: onnx_ir.Node, parts: Expansion) -> None:
    """Each group becomes one channel of an InstanceNormalization; then per-channel scale and bias."""
    x, scale, bias = (parts.operand(index) for index in range(3))
    rank, groups = parts.rank(x), node.attributes.get_int("num_groups", 1)
    one, zero = (parts.repeated(number, groups, x) for number in (1.0, 0.0))
    epsilon = onnx_ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-5))
    grouped = parts.reshape(x, [0, groups, -1])
    normal = parts.add("InstanceNormalization", [grouped, one, zero], [epsilon], like=x)
    shape = parts.add("Shape", [x], like=parts.ints([rank]))
    shape.shape = onnx_ir.Shape([rank])
    apart = parts.add("Reshape", [normal, shape])
    if rank > 2:
        behind = parts.ints(list(range(1, rank - 1)))
        scale, bias = (parts.add("Unsqueeze", [value, behind], like=x) for value in (scale, bias))
    parts.add("Add", [parts.add("Mul", [apart, scale]), bias])


def _rms_normalization(node: onnx_ir.Node, parts: Expansion) -> None:
    """`x / sqrt(mean(x^2) + epsilon) * scale`; the quotient in float32 if x is narrower."""
    x, scale = parts.operand(0), parts.operand(1)
    rank = parts.rank(x)
    axis = node.attributes.get_int("axis", -1) % rank
    is_wide = x.dtype in _NARROW and node.attributes.get_int("stash_type", 1) == 1
    wide = parts.cast(x, onnx_ir.DataType.FLOAT) if is_wide else x
    axes = parts.ints(list(range(axis, rank)))
    mean = parts.add("ReduceMean", [parts.mul(wide, wide), axes], like=wide)
    shifted = parts.add(
        "Add", [mean, parts.scalar(node.attributes.get_float("epsilon", 1e-5), wide)], like=wide
    )
    normal = parts.add("Div", [wide, parts.add("Sqrt", [shifted], like=wide)], like=wide)
    narrow = parts.cast(normal, x.dtype) if is_wide and x.dtype is not None else normal
    parts.add("Mul", [narrow, scale])


def _rotary_embedding(node: onnx_ir.Node, parts: Expansion) -> None:
    """Rotates pairs of elements by angles given as cosines and sines."""
    x, cosine, sine = (parts.operand(index) for index in range(3))
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        positions = node.inputs[3]
        cosine, sine = (parts.add("Gather", [table, positions], like=x) for table in (cosine, sine))
    rank, heads = parts.rank(x), node.attributes.get_int("num_heads", 0)
    if rank == 3:
        x = _split_heads(parts, x, heads)
    width = parts.size(x, 3)
    rotated_width = node.attributes.get_int("rotary_embedding_dim", 0) or width
    rotated, rest = x, None
    if rotated_width < width:
        rotated, rest = parts.split(x, [rotated_width, width - rotated_width], axis=3)
    cosine, sine = (parts.add("Unsqueeze", [table, parts.ints([1])], like=x) for table in (cosine, sine))
    if node.attributes.get_int("interleaved", 0):
        # [.., 2i] and [.., 2i + 1] are a pair.
        half = rotated_width // 2
        pairs = parts.reshape(rotated, [0, 0, 0, half, 2])
        first, second = (parts.add("Squeeze", [part, parts.ints([4])], like=x)
                         for part in parts.split(pairs, [1, 1], axis=4))  # fmt: skip
    else:
        first, second = parts.split(rotated, [rotated_width // 2] * 2, axis=3)
    real = parts.add("Sub", [parts.mul(cosine, first), parts.mul(sine, second)], like=x)
    imaginary = parts.add("Add", [parts.mul(sine, first), parts.mul(cosine, second)], like=x)
    if node.attributes.get_int("interleaved", 0):
        columns = [parts.add("Unsqueeze", [part, parts.ints([4])], like=x) for part in (real, imaginary)]
        joined = parts.reshape(parts.concat(columns, 4), [0, 0, 0, rotated_width])
    else:
        joined = parts.concat([real, imaginary], 3)
    if rest is not None:
        joined = parts.concat([joined, rest], 3)
    if rank == 3:
        _join_heads(parts, joined)


def _attention(node: onnx_ir.Node, parts: Expansion) -> None:
    """`softmax(scale * Q K^T + mask) V` per head; keys and values are repeated for grouped heads."""
    if len(node.outputs) > 1 or any(value is not None for value in node.inputs[4:]):
        raise UnsupportedError("an attention with past keys or several outputs", where=str(node.name))
    q, k, v = (parts.operand(index) for index in range(3))
    is_flat = parts.rank(q) == 3
    if is_flat:
        q_heads, kv_heads = (node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
        q, k, v = (
            _split_heads(parts, x, heads)
            for x, heads in zip((q, k, v), (q_heads, kv_heads, kv_heads), strict=True)
        )
    repeats = parts.size(q, 1) // parts.size(k, 1)
    if repeats > 1:
        k, v = (_repeat_heads(parts, x, repeats) for x in (k, v))
    scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(parts.size(q, 3))
    scaled = parts.mul(q, parts.scalar(scale, q))
    scores = parts.add("MatMul", [scaled, parts.transpose(k, [0, 1, 3, 2])], like=q)
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    softcap = node.attributes.get_float("softcap", 0.0)
    if softcap:
        cap = parts.scalar(softcap, q)
        scores = parts.mul(parts.add("Tanh", [parts.add("Div", [scores, cap], like=q)], like=q), cap)
    if node.attributes.get_int("is_causal", 0):
        scores = _masked(parts, scores, _causal_mask(parts, q, k))
    if mask is not None and mask.dtype != onnx_ir.DataType.BOOL:
        scores = parts.add("Add", [scores, mask], like=q)
    elif mask is not None:
        scores = _masked(parts, scores, mask)
    weights = parts.add("Softmax", [scores], [onnx_ir.AttrInt64("axis", -1)], like=q)
    if mask is not None:
        # A fully masked row gives zeros, not NaN.
        empty = parts.add("IsNaN", [weights], like=q)
        empty.type = onnx_ir.TensorType(onnx_ir.DataType.BOOL)
        weights = parts.add("Where", [empty, parts.scalar(0.0, q), weights], like=q)
    result = parts.add("MatMul", [weights, v], like=q if is_flat else None)
    if is_flat:
        _join_heads(parts, result)


def _masked(parts: Expansion, scores: onnx_ir.Value, mask: onnx_ir.Value) -> onnx_ir.Value:
    """The scores, set to minus infinity where the mask is False."""
    return parts.add("Where", [mask, scores, parts.scalar(-math.inf, scores)], like=scores)


def _causal_mask(parts: Expansion, q: onnx_ir.Value, k: onnx_ir.Value) -> onnx_ir.Value:
    """A [queries, keys] mask, True unless the key comes after the query; sizes may be symbolic."""
    zero, one = parts.int_scalar(0), parts.int_scalar(1)
    rows, columns = (parts.add("Range", [zero, parts.length(x, 2), one], like=zero) for x in (q, k))
    column_of_rows = parts.add("Unsqueeze", [rows, parts.ints([1])], like=zero)
    mask = parts.add("LessOrEqual", [columns, column_of_rows], like=zero)
    mask.type = onnx_ir.TensorType(onnx_ir.DataType.BOOL)
    return mask


def _split_heads(parts: Expansion, x: onnx_ir.Value, heads: int) -> onnx_ir.Value:
    """Reshapes [B, S, heads * size] to [B, heads, S, size]."""
    width = parts.size(x, 2)
    shape = None if x.shape is None else [x.shape[0], heads, x.shape[1], width // heads]
    apart = parts.reshape(x, [0, 0, heads, width // heads])
    moved = parts.transpose(apart, [0, 2, 1, 3])
    moved.shape = None if shape is None else onnx_ir.Shape(shape)
    return moved


def _join_heads(parts: Expansion, x: onnx_ir.Value) -> onnx_ir.Value:
    """The inverse of `_split_heads`."""
    moved = parts.transpose(x, [0, 2, 1, 3])
    return parts.reshape(moved, [0, 0, -1])


def _repeat_heads(parts: Expansion, x: onnx_ir.Value, times: int) -> onnx_ir.Value:
    """Expands [B, H, S, D] to [B, H * times, S, D], each head `times` in a row."""
    heads, width = parts.size(x, 1), parts.size(x, 3)
    apart = parts.add("Unsqueeze", [x, parts.ints([2])], like=x)
    spread = parts.add("Expand", [apart, parts.ints([1, 1, times, 1, 1])], like=x)
    return parts.reshape(spread, [0, heads * times, -1, width])


EXPANSIONS = {
    "Attention": _attention,
    "Gelu": _gelu,
    "GroupNormalization": _group_normalization,
    "HardSwish": _hard_swish,
    "LayerNormalization": _layer_normalization,
    "Mish": _mish,
    "RMSNormalization": _rms_normalization,
    "RotaryEmbedding": _rotary_embedding,
    "Swish": _swish,
}
"""Expansion of each operator that can be decomposed."""
