"""Network blocks with free parameters, which the curriculum stacks.

A block's output has the shape of its input, so that any number can follow each other. Image blocks work on
[batch, channels, size, size], sequence blocks on [batch, length, width].
"""

from __future__ import annotations

from collections.abc import Callable

from numpy.random import Generator

from training.graphs.sketch import Sketch, Value

Block = Callable[[Sketch, Value, Generator], Value]

_POINTWISE = ("Relu", "Sigmoid", "Tanh", "Gelu", "Neg", "Abs", "HardSwish", "Identity")


def pick(rng: Generator, *choices: int) -> int:
    """Draw one of the choices."""
    return choices[int(rng.integers(len(choices)))]


def _activation(sketch: Sketch, x: Value, rng: Generator) -> Value:
    return sketch.op(("Relu", "Relu", "HardSwish", "Sigmoid")[int(rng.integers(4))], x)


def _conv_bn(sketch: Sketch, x: Value, rng: Generator, channels: int, kernel: int, group: int = 1) -> Value:
    y = sketch.conv(x, channels, kernel, group=group, bias=bool(rng.integers(2)))
    return sketch.batch_norm(y) if rng.random() < 0.8 else y


def fragment(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A few random operators of the kind that single substitutions match."""
    for _ in range(int(rng.integers(2, 6))):
        kind = int(rng.integers(8))
        shape = sketch.shape(x)
        if kind <= 1:
            x = sketch.op(_POINTWISE[int(rng.integers(len(_POINTWISE)))], x)
        elif kind == 2:
            x = sketch.op("Mul", x, sketch.number(float(rng.choice([0.5, 1.0, 2.0]))))
        elif kind == 3:
            x = sketch.op("Add", x, sketch.number(float(rng.choice([0.0, 1.0]))))
        elif kind == 4:
            perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            y = sketch.op("Transpose", x, perm=perm)
            if rng.random() < 0.5:
                y = sketch.op(_POINTWISE[int(rng.integers(4))], y)
            x = sketch.op("Transpose", y, perm=perm)
        elif kind == 5:
            y = sketch.op("Reshape", x, shape=[shape[0], -1])
            x = sketch.op("Reshape", y, shape=list(shape))
        elif kind == 6:
            parts = [sketch.op("Mul", x, sketch.weight(shape[-1])) for _ in range(int(rng.integers(2, 4)))]
            total = parts[0]
            for part in parts[1:]:
                total = sketch.op("Add", total, part)
            x = total
        else:
            half = sketch.op("Concat", x, sketch.op("Relu", x), axis=1)
            x = sketch.op("Add", *sketch.split(half, 1, [shape[1], shape[1]]))
    return x


def conv_bn_relu(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Convolutions with normalisation and activation."""
    channels = sketch.shape(x)[1]
    for _ in range(int(rng.integers(1, 4))):
        x = _activation(sketch, _conv_bn(sketch, x, rng, channels, pick(rng, 1, 3, 3, 5)), rng)
    return x


def residual(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Bottleneck with a shortcut, which may itself be a convolution."""
    channels = sketch.shape(x)[1]
    inner = max(4, channels // pick(rng, 1, 2, 4))
    y = sketch.op("Relu", _conv_bn(sketch, x, rng, inner, 1))
    y = sketch.op("Relu", _conv_bn(sketch, y, rng, inner, 3))
    y = _conv_bn(sketch, y, rng, channels, 1)
    shortcut = _conv_bn(sketch, x, rng, channels, 1) if rng.random() < 0.4 else x
    return sketch.op("Relu", sketch.op("Add", y, shortcut))


def inception(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Parallel towers, concatenated along the channels and projected back."""
    channels = sketch.shape(x)[1]
    towers = []
    for _ in range(int(rng.integers(2, 5))):
        width = max(4, channels // pick(rng, 1, 2, 4))
        y = sketch.op("Relu", _conv_bn(sketch, x, rng, width, 1))
        if rng.random() < 0.6:
            y = sketch.op("Relu", _conv_bn(sketch, y, rng, width, pick(rng, 3, 5)))
        towers.append(y)
    if rng.random() < 0.5:
        pooled = sketch.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
        towers.append(sketch.conv(pooled, max(4, channels // 2), 1, bias=True))
    return sketch.op("Relu", sketch.conv(sketch.op("Concat", *towers, axis=1), channels, 1))


def squeeze_excite(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Channels weighted by a gate computed from their averages."""
    channels = sketch.shape(x)[1]
    inner = max(4, channels // pick(rng, 2, 4, 8))
    y = sketch.op("ReduceMean", x, axes=[2, 3], keepdims=1)
    y = sketch.op("Relu", sketch.conv(y, inner, 1, bias=True))
    gate = sketch.op(("Sigmoid", "HardSigmoid")[int(rng.integers(2))], sketch.conv(y, channels, 1, bias=True))
    return sketch.op("Mul", _conv_bn(sketch, x, rng, channels, 3), gate)


def reparametrised(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Sum of parallel convolutions of one input (RepVGG in training form)."""
    channels = sketch.shape(x)[1]
    total = _conv_bn(sketch, x, rng, channels, 3)
    for _ in range(int(rng.integers(1, 4))):
        total = sketch.op("Add", total, _conv_bn(sketch, x, rng, channels, pick(rng, 1, 3)))
    if rng.random() < 0.5:
        total = sketch.op("Add", total, sketch.batch_norm(x))
    return sketch.op("Relu", total)


def attention(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Self-attention written out, with separate projections per head or with reshaped heads."""
    batch, length, width = sketch.shape(x)
    heads = pick(rng, 2, 4)
    inner = width // heads
    normal = sketch.layer_norm(x)
    scale = sketch.number(inner**0.5)
    query, key, value = (sketch.linear(normal, width, bias=bool(rng.integers(2))) for _ in range(3))
    shape = [batch, length, heads, inner]
    query, key, value = (
        sketch.op("Transpose", sketch.op("Reshape", each, shape=shape), perm=[0, 2, 1, 3])
        for each in (query, key, value)
    )
    scores = sketch.op("MatMul", query, sketch.op("Transpose", key, perm=[0, 1, 3, 2]))
    mixed = sketch.op("MatMul", sketch.op("Softmax", sketch.op("Div", scores, scale)), value)
    joined = sketch.op(
        "Reshape", sketch.op("Transpose", mixed, perm=[0, 2, 1, 3]), shape=[batch, length, width]
    )
    return sketch.op("Add", x, sketch.linear(joined, width))


def heads_loop(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Attention with a loop over the heads, as in textbooks."""
    width = sketch.shape(x)[2]
    heads = pick(rng, 2, 3, 4)
    inner = max(4, width // heads)
    normal, scale, outs = sketch.layer_norm(x), sketch.number(inner**0.5), []
    for _ in range(heads):
        query, key, value = (sketch.linear(normal, inner, bias=False) for _ in range(3))
        scores = sketch.op("MatMul", query, sketch.op("Transpose", key, perm=[0, 2, 1]))
        outs.append(sketch.op("MatMul", sketch.op("Softmax", sketch.op("Div", scores, scale)), value))
    return sketch.op("Add", x, sketch.linear(sketch.op("Concat", *outs, axis=2), width))


def gated_mlp(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Feed-forward block, with or without a gate."""
    width = sketch.shape(x)[2]
    inner = width * pick(rng, 1, 2, 4)
    normal = sketch.layer_norm(x)
    up = sketch.linear(normal, inner)
    act = ("Gelu", "Relu", "Sigmoid")[int(rng.integers(3))]
    if rng.random() < 0.6:
        up = sketch.op("Mul", sketch.op(act, sketch.linear(normal, inner)), up)
    else:
        up = sketch.op(act, up)
    return sketch.op("Add", x, sketch.linear(up, width))


def low_rank(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A linear layer with an unmerged low-rank adapter, or a product of two matrices."""
    width = sketch.shape(x)[2]
    down = sketch.linear(x, pick(rng, 4, 8, 16), bias=False)
    adapter = sketch.op("Mul", sketch.linear(down, width, bias=False), sketch.number(2.0))
    if rng.random() < 0.3:
        return adapter
    return sketch.op("Add", sketch.linear(x, width, bias=bool(rng.integers(2))), adapter)


def linear_chain(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Linear layers in sequence and in parallel with nothing in between: factored weights."""
    width = sketch.shape(x)[2]
    heads = []
    for _ in range(int(rng.integers(1, 4))):
        y = x
        for _ in range(int(rng.integers(1, 4))):
            inner = max(4, width * pick(rng, 1, 2, 4) // 2)
            y = sketch.linear(y, inner, bias=bool(rng.integers(2)))
        heads.append(sketch.linear(y, width, bias=bool(rng.integers(2))))
    total = heads[0]
    for head in heads[1:]:
        total = sketch.op("Mul" if rng.random() < 0.3 else "Add", total, head)
    return sketch.op("Add", x, total) if rng.random() < 0.5 else sketch.op("Tanh", total)


def experts(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Experts in a loop, weighted and summed."""
    width, count = sketch.shape(x)[2], pick(rng, 2, 3, 4)
    gates = sketch.op("Softmax", sketch.linear(x, count))
    total: Value | None = None
    for i in range(count):
        y = sketch.linear(sketch.op("Gelu", sketch.linear(x, width)), width)
        gate = sketch.op("Slice", gates, axes=[2], starts=[i], ends=[i + 1], steps=[1])
        y = sketch.op("Mul", gate, y)
        total = y if total is None else sketch.op("Add", total, y)
    assert total is not None
    return total


def recurrent_cell(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A few steps of a gated recurrent cell over the rows of the sequence, with separate gates."""
    width = sketch.shape(x)[2]
    hidden = sketch.op("Slice", x, axes=[1], starts=[0], ends=[1], steps=[1])
    weights = [(sketch.weight(width, width), sketch.weight(width, width)) for _ in range(3)]
    for t in range(1, int(rng.integers(2, 4))):
        row = sketch.op("Slice", x, axes=[1], starts=[t], ends=[t + 1], steps=[1])
        gates = [
            sketch.op("Add", sketch.op("MatMul", row, of_row), sketch.op("MatMul", hidden, of_hidden))
            for of_row, of_hidden in weights
        ]
        keep, new, out = (
            sketch.op(name, gate) for name, gate in zip(("Sigmoid", "Tanh", "Sigmoid"), gates, strict=True)
        )
        hidden = sketch.op("Add", sketch.op("Mul", keep, hidden), sketch.op("Mul", out, new))
    return sketch.op("Add", x, hidden)


def grouped_residual(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """ResNeXt's block: a grouped convolution in the bottleneck."""
    channels = sketch.shape(x)[1]
    y = sketch.op("Relu", _conv_bn(sketch, x, rng, channels, 1))
    y = sketch.op("Relu", _conv_bn(sketch, y, rng, channels, 3, group=pick(rng, 2, 4)))
    return sketch.op("Relu", sketch.op("Add", _conv_bn(sketch, y, rng, channels, 1), x))


def separable_cell(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A NASNet-like cell: separable convolutions of one input, summed in pairs and concatenated."""
    channels = sketch.shape(x)[1]
    sums = []
    for _ in range(int(rng.integers(2, 4))):
        sides = []
        for _ in range(2):
            y = sketch.conv(sketch.op("Relu", x), channels, pick(rng, 3, 5), group=channels)
            sides.append(sketch.batch_norm(sketch.conv(y, channels, 1)))
        sums.append(sketch.op("Add", *sides))
    return sketch.conv(sketch.op("Concat", *sums, axis=1), channels, 1)


IMAGE_BLOCKS: dict[str, Block] = {
    "fragment": fragment,
    "conv_bn_relu": conv_bn_relu,
    "residual": residual,
    "inception": inception,
    "squeeze_excite": squeeze_excite,
    "reparametrised": reparametrised,
    "grouped_residual": grouped_residual,
    "separable_cell": separable_cell,
}
SEQUENCE_BLOCKS: dict[str, Block] = {
    "fragment": fragment,
    "attention": attention,
    "heads_loop": heads_loop,
    "gated_mlp": gated_mlp,
    "low_rank": low_rank,
    "linear_chain": linear_chain,
    "experts": experts,
    "recurrent_cell": recurrent_cell,
}
#: Families that training never sees: those of ResNeXt, NASNet and NasRNN.
HELD_OUT_FAMILIES = frozenset({"grouped_residual", "separable_cell", "recurrent_cell"})
