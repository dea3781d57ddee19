"""Test blocks, never used in training: architectures where planning may pay off.

As in `blocks`, the output of each has the shape of its input.
"""

from __future__ import annotations

from numpy.random import Generator

from training.graphs.blocks import Block, pick
from training.graphs.sketch import Sketch, Value


def _conv_bn(sketch: Sketch, x: Value, channels: int, kernel: int, group: int = 1) -> Value:
    return sketch.batch_norm(sketch.conv(x, channels, kernel, group=group))


def _pool(sketch: Sketch, x: Value, kind: str) -> Value:
    return sketch.op(kind, x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])


def darts_cell(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A DARTS cell: each node adds two operations on earlier nodes; all nodes are concatenated."""
    channels = sketch.shape(x)[1]
    nodes = [sketch.batch_norm(sketch.conv(sketch.op("Relu", x), channels, 1)), x]
    for _ in range(int(rng.integers(2, 5))):
        sides = []
        for _ in range(2):
            source = nodes[int(rng.integers(len(nodes)))]
            kind = int(rng.integers(4))
            if kind == 0:
                sides.append(source)
            elif kind == 1:
                sides.append(_pool(sketch, source, "AveragePool"))
            else:
                y = sketch.conv(sketch.op("Relu", source), channels, 2 * kind - 1, group=channels)
                sides.append(sketch.batch_norm(sketch.conv(y, channels, 1)))
        nodes.append(sketch.op("Add", *sides))
    return sketch.conv(sketch.op("Concat", *nodes[2:], axis=1), channels, 1)


def randwire_stage(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A RandWire stage: a random graph of convolutions whose inputs are sums with sigmoid weights."""
    channels = sketch.shape(x)[1]
    nodes, unused = [x], {0}
    for _ in range(int(rng.integers(3, 6))):
        sources = sorted({int(rng.integers(len(nodes))) for _ in range(2)})
        unused -= set(sources)
        total = nodes[sources[0]]
        for source in sources[1:]:
            gate = sketch.op("Sigmoid", sketch.weight(1))
            total = sketch.op("Add", total, sketch.op("Mul", nodes[source], gate))
        unused.add(len(nodes))
        nodes.append(_conv_bn(sketch, sketch.op("Relu", total), channels, 3))
    ends = [nodes[i] for i in sorted(unused)]
    total = ends[0]
    for end in ends[1:]:
        total = sketch.op("Add", total, end)
    return total


def asymmetric_convs(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """An ACNet block in training form: square, horizontal and vertical kernels, normalised and added."""
    channels = sketch.shape(x)[1]
    total = _conv_bn(sketch, x, channels, 3)
    for kernel, pads in (((1, 3), [0, 1, 0, 1]), ((3, 1), [1, 0, 1, 0])):
        weight = sketch.weight(channels, channels, *kernel)
        y = sketch.op("Conv", x, weight, strides=[1, 1], pads=pads, group=1)
        total = sketch.op("Add", total, sketch.batch_norm(y))
    return sketch.op("Relu", total) if rng.random() < 0.8 else total


def ghost_block(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A RepGhost block: cheap depthwise features next to expensive ones, with a normalised shortcut."""
    channels = sketch.shape(x)[1]
    half = max(4, channels // 2)
    dear = sketch.op("Relu", _conv_bn(sketch, x, half, 1))
    cheap = _conv_bn(sketch, dear, half, 3, group=half)
    if rng.random() < 0.6:
        cheap = sketch.op("Add", cheap, sketch.batch_norm(dear))
    joined = sketch.op("Concat", dear, sketch.op("Relu", cheap), axis=1)
    return sketch.op("Add", _conv_bn(sketch, joined, channels, 1), x)


def skip_concat(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A UNet decoder level: upsampled features with time projections, joined with the skip connection."""
    batch, channels = sketch.shape(x)[:2]
    skipped = sketch.op("Relu", _conv_bn(sketch, x, channels, 3))
    inner = sketch.op("Relu", _conv_bn(sketch, skipped, channels, 3))
    time = sketch.op("Gelu", sketch.op("ReduceMean", x, axes=[2, 3], keepdims=0))
    for _ in range(int(rng.integers(1, 3))):
        shift = sketch.op("Reshape", sketch.linear(time, channels), shape=[batch, channels, 1, 1])
        inner = sketch.op("Add", sketch.conv(inner, channels, 3, bias=True), shift)
    return sketch.conv(sketch.op("Concat", inner, skipped, axis=1), channels, 1, bias=True)


def overparametrised(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A MobileOne block in training form: several depthwise branches, then several pointwise ones."""
    channels = sketch.shape(x)[1]
    for kernel, group in ((3, channels), (1, 1)):
        total = sketch.batch_norm(x)
        for _ in range(int(rng.integers(1, 5))):
            total = sketch.op("Add", total, _conv_bn(sketch, x, channels, kernel, group))
        x = sketch.op("Relu", total)
    return x


def many_adapters(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Several low-rank adapters on one linear layer, each with its own weight."""
    width, rank = sketch.shape(x)[2], pick(rng, 4, 8, 16)
    total = sketch.linear(x, width)
    for _ in range(int(rng.integers(2, 5))):
        down = sketch.linear(x, rank, bias=False)
        up = sketch.op("Mul", sketch.linear(down, width, bias=False), sketch.number(0.5))
        total = sketch.op("Add", total, up)
    return total


def gated_experts(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """MMoE: experts of unequal widths, mixed by one gate for each of two tasks."""
    width, outs = sketch.shape(x)[2], []
    count = pick(rng, 2, 3)
    experts = [
        sketch.linear(sketch.op("Relu", sketch.linear(x, width * pick(rng, 1, 2) // 2)), width)
        for _ in range(count)
    ]
    for _ in range(2):
        gates = sketch.op("Softmax", sketch.linear(x, count))
        mixed = [
            sketch.op("Mul", expert, gate)
            for expert, gate in zip(experts, sketch.split(gates, 2, [1] * count), strict=True)
        ]
        total = mixed[0]
        for each in mixed[1:]:
            total = sketch.op("Add", total, each)
        outs.append(sketch.linear(total, width))
    return sketch.op("Add", *outs)


def interaction(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """DLRM: two towers, and the pairwise dot products of all their rows."""
    batch, length, width = sketch.shape(x)
    towers = [sketch.op("Relu", sketch.linear(x, width)) for _ in range(int(rng.integers(1, 3)))]
    rows = sketch.op("Concat", x, *towers, axis=1)
    pairs = sketch.op("MatMul", x, sketch.op("Transpose", rows, perm=[0, 2, 1]))
    flat = sketch.op("Reshape", pairs, shape=[batch, length, length * (1 + len(towers))])
    return sketch.op("Add", x, sketch.linear(flat, width))


def relations(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """A layer of a relational graph network: (A_r x) W_r summed over relations, with a self-loop."""
    length, width = sketch.shape(x)[1:]
    total = sketch.linear(x, width)
    for _ in range(int(rng.integers(1, 4))):
        adjacency = sketch.weight(length, length)
        inner = width if rng.random() < 0.5 else max(8, width // 4)
        y = sketch.op("MatMul", adjacency, x)
        y = sketch.linear(y, inner, bias=False)
        total = sketch.op("Add", total, y if inner == width else sketch.linear(y, width, bias=False))
    return sketch.op("Relu", total)


def linear_attention(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """Attention without a softmax, in the most expensive order: (q k^T) v."""
    width = sketch.shape(x)[2]
    inner = max(8, width // pick(rng, 1, 2, 4))
    query, key = (sketch.op("Relu", sketch.linear(x, inner, bias=False)) for _ in range(2))
    value = sketch.linear(x, inner, bias=False)
    scores = sketch.op("MatMul", query, sketch.op("Transpose", key, perm=[0, 2, 1]))
    mixed = sketch.op("MatMul", sketch.op("Mul", scores, sketch.number(inner**-0.5)), value)
    return sketch.op("Add", x, sketch.linear(mixed, width))


def gated_state(sketch: Sketch, x: Value, rng: Generator) -> Value:
    """The operators around Mamba's scan: one projection for state and gate, a small one per parameter."""
    width = sketch.shape(x)[2]
    inner = width * pick(rng, 1, 2)
    normal = sketch.layer_norm(x)
    state, gate = sketch.split(sketch.linear(normal, 2 * inner, bias=False), 2, [inner, inner])
    state = sketch.op("Mul", state, sketch.op("Sigmoid", state))
    steps = sketch.op("Sigmoid", sketch.linear(sketch.linear(state, max(4, inner // 16), bias=False), inner))
    mixed = sketch.op("Add", sketch.op("Mul", steps, state), sketch.op("Mul", state, sketch.weight(inner)))
    mixed = sketch.op("Mul", mixed, sketch.op("Mul", gate, sketch.op("Sigmoid", gate)))
    return sketch.op("Add", x, sketch.linear(mixed, width, bias=False))


UNSEEN_IMAGE_BLOCKS: dict[str, Block] = {
    "darts_cell": darts_cell,
    "randwire_stage": randwire_stage,
    "asymmetric_convs": asymmetric_convs,
    "ghost_block": ghost_block,
    "skip_concat": skip_concat,
    "overparametrised": overparametrised,
}
UNSEEN_SEQUENCE_BLOCKS: dict[str, Block] = {
    "many_adapters": many_adapters,
    "gated_experts": gated_experts,
    "interaction": interaction,
    "relations": relations,
    "linear_attention": linear_attention,
    "gated_state": gated_state,
}
