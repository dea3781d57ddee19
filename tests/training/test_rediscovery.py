"""Each family of TASO's published axioms (SOSP 2019, table 2) is rediscovered.

Every law is a pair of graphs. The library, with what the generator found, leads from one to the other in at
most three steps, in at least one direction: as one of its substitutions, or as an instance of one. A few laws
have sides that cost the same at all shapes: those the generator finds, and prunes for that reason.
"""

from __future__ import annotations

import pytest

from tests.substitutions.graphs import graph_of
from torchrlopt import _C
from torchrlopt.substitutions import library_text
from training.generate import _enumerate
from training.generate.emit import formula
from training.generate.found_library import found_text
from training.generate.generalise import generalisations
from training.generate.pairs import Pair

pytestmark = pytest.mark.nightly

LIBRARY = _C.Library(library_text() + found_text())
MAX_STEPS = 3

SQUARES = "a: f32[6,6], b: f32[6,6], c: f32[6,6], d: f32[6,6], k: f32[1], j: f32[1]"
# Association pays where two of three are weights.
WEIGHTS = "a: f32[6,6], %b: f32[6,6], %c: f32[6,6], %k: f32[1], %j: f32[1]"
IMAGES = (
    "x: f32[1,4,7,7], z: f32[1,4,7,7], %w: f32[4,4,3,3], %v: f32[4,4,3,3], "
    "%p: f32[4,4,1,1], %q: f32[4,4,1,1], k: f32[1]"
)
SAME = "pads=[1,1,1,1]"
POOL = f"kernel_shape=[3,3], {SAME}, count_include_pad=1"

#: Family, what it says, inputs, one side, the other side.
LAWS: tuple[tuple[str, str, str, str, str], ...] = (
    # sums and products of elements
    ("elementwise", "sums associate", WEIGHTS,
     "t = Add(%b, %c); y = Add(a, t)", "t = Add(a, %b); y = Add(t, %c)"),
    ("elementwise", "products associate", WEIGHTS,
     "t = Mul(%b, %c); y = Mul(a, t)", "t = Mul(a, %b); y = Mul(t, %c)"),
    ("elementwise", "products distribute", SQUARES,
     "t = Mul(a, c); u = Mul(b, c); y = Add(t, u)", "t = Add(a, b); y = Mul(t, c)"),
    # scales
    ("scale", "scales associate", WEIGHTS,
     "t = Mul(a, %k); y = Mul(t, %j)", "t = Mul(%k, %j); y = Mul(a, t)"),
    ("scale", "of a sum", SQUARES,
     "t = Mul(a, k); u = Mul(b, k); y = Add(t, u)", "t = Add(a, b); y = Mul(t, k)"),
    ("scale", "of a product of elements", WEIGHTS,
     "t = Mul(a, %b); y = Mul(t, %k)", "t = Mul(%b, %k); y = Mul(a, t)"),
    ("scale", "of a transpose", SQUARES,
     "t = Transpose(a; perm=[1,0]); y = Mul(t, k)", "t = Mul(a, k); y = Transpose(t; perm=[1,0])"),
    ("scale", "of a matrix product, left", SQUARES,
     "t = MatMul(a, b); y = Mul(t, k)", "t = Mul(a, k); y = MatMul(t, b)"),
    ("scale", "of a matrix product, right", SQUARES,
     "t = MatMul(a, b); y = Mul(t, k)", "t = Mul(b, k); y = MatMul(a, t)"),
    # transposes
    ("transpose", "is its own inverse", SQUARES,
     "t = Transpose(a; perm=[1,0]); u = Transpose(t; perm=[1,0]); y = Relu(u)", "y = Relu(a)"),
    ("transpose", "of a sum", SQUARES,
     "t = Add(a, b); y = Transpose(t; perm=[1,0])",
     "t = Transpose(a; perm=[1,0]); u = Transpose(b; perm=[1,0]); y = Add(t, u)"),
    ("transpose", "of a product of elements", SQUARES,
     "t = Mul(a, b); y = Transpose(t; perm=[1,0])",
     "t = Transpose(a; perm=[1,0]); u = Transpose(b; perm=[1,0]); y = Mul(t, u)"),
    ("transpose", "of a matrix product", SQUARES,
     "t = MatMul(a, b); y = Transpose(t; perm=[1,0])",
     "t = Transpose(a; perm=[1,0]); u = Transpose(b; perm=[1,0]); y = MatMul(u, t)"),
    ("transpose", "relu between two of them", SQUARES,
     "t = Transpose(a; perm=[1,0]); r = Relu(t); y = Transpose(r; perm=[1,0])", "y = Relu(a)"),
    # matrix products
    ("matmul", "associates", SQUARES,
     "t = MatMul(a, b); y = MatMul(t, c)", "t = MatMul(b, c); y = MatMul(a, t)"),
    ("matmul", "distributes over a sum on the right", SQUARES,
     "t = MatMul(a, b); u = MatMul(a, c); y = Add(t, u)", "t = Add(b, c); y = MatMul(a, t)"),
    ("matmul", "distributes over a sum on the left", SQUARES,
     "t = MatMul(a, c); u = MatMul(b, c); y = Add(t, u)", "t = Add(a, b); y = MatMul(t, c)"),
    # split and concat
    ("concat", "split takes its parts", SQUARES,
     "t = Concat(a, b; axis=1); p, q = Split(t; axis=1, sizes=[6,6]); y = Sub(p, q)", "y = Sub(a, b)"),
    ("concat", "of split parts", SQUARES,
     "p, q = Split(a; axis=0, sizes=[2,4]); t = Concat(p, q; axis=0); y = Relu(t)", "y = Relu(a)"),
    ("concat", "rows of columns", SQUARES,
     "t = Concat(a, b; axis=1); u = Concat(c, d; axis=1); y = Concat(t, u; axis=0)",
     "t = Concat(a, c; axis=0); u = Concat(b, d; axis=0); y = Concat(t, u; axis=1)"),
    ("concat", "of scaled", SQUARES,
     "t = Mul(a, k); u = Mul(b, k); y = Concat(t, u; axis=1)", "t = Concat(a, b; axis=1); y = Mul(t, k)"),
    ("concat", "of sums", SQUARES,
     "t = Add(a, b); u = Add(c, d); y = Concat(t, u; axis=0)",
     "t = Concat(a, c; axis=0); u = Concat(b, d; axis=0); y = Add(t, u)"),
    ("concat", "of products of elements", SQUARES,
     "t = Mul(a, b); u = Mul(c, d); y = Concat(t, u; axis=0)",
     "t = Concat(a, c; axis=0); u = Concat(b, d; axis=0); y = Mul(t, u)"),
    ("concat", "of relus", SQUARES,
     "t = Relu(a); u = Relu(b); y = Concat(t, u; axis=1)", "t = Concat(a, b; axis=1); y = Relu(t)"),
    ("concat", "of transposes", SQUARES,
     "t = Transpose(a; perm=[1,0]); u = Transpose(b; perm=[1,0]); y = Concat(t, u; axis=0)",
     "t = Concat(a, b; axis=1); y = Transpose(t; perm=[1,0])"),
    ("concat", "of products that share the left", SQUARES,
     "t = MatMul(a, b); u = MatMul(a, c); y = Concat(t, u; axis=1)",
     "t = Concat(b, c; axis=1); y = MatMul(a, t)"),
    ("concat", "of products that share the right", SQUARES,
     "t = MatMul(a, c); u = MatMul(b, c); y = Concat(t, u; axis=0)",
     "t = Concat(a, b; axis=0); y = MatMul(t, c)"),
    ("concat", "a sum of products is a product of blocks", SQUARES,
     "t = MatMul(a, b); u = MatMul(c, d); y = Add(t, u)",
     "t = Concat(a, c; axis=1); u = Concat(b, d; axis=0); y = MatMul(t, u)"),
    # convolutions
    ("conv", "scale of the input", IMAGES,
     f"t = Mul(x, k); y = Conv(t, %w; {SAME})", f"t = Mul(%w, k); y = Conv(x, t; {SAME})"),
    ("conv", "scale of the result", IMAGES,
     f"t = Conv(x, %w; {SAME}); y = Mul(t, k)", f"t = Mul(x, k); y = Conv(t, %w; {SAME})"),
    ("conv", "is linear in the kernel", IMAGES,
     f"t = Conv(x, %w; {SAME}); u = Conv(x, %v; {SAME}); y = Add(t, u)",
     f"t = Add(%w, %v); y = Conv(x, t; {SAME})"),
    ("conv", "is linear in the input", IMAGES,
     f"t = Conv(x, %w; {SAME}); u = Conv(z, %w; {SAME}); y = Add(t, u)",
     f"t = Add(x, z); y = Conv(t, %w; {SAME})"),
    ("conv", "a larger kernel with zeros", IMAGES,
     "y = Conv(x, %p; pads=[0,0,0,0])", f"t = Pad(%p; pads=[0,0,1,1,0,0,1,1]); y = Conv(x, t; {SAME})"),
    ("conv", "concat on the batch", IMAGES,
     f"t = Conv(x, %w; {SAME}); u = Conv(z, %w; {SAME}); y = Concat(t, u; axis=0)",
     f"t = Concat(x, z; axis=0); y = Conv(t, %w; {SAME})"),
    ("conv", "concat of kernels", IMAGES,
     f"t = Conv(x, %w; {SAME}); u = Conv(x, %v; {SAME}); y = Concat(t, u; axis=1)",
     f"t = Concat(%w, %v; axis=0); y = Conv(x, t; {SAME})"),
    ("conv", "a sum of convolutions is one of stacked channels", IMAGES,
     f"t = Conv(x, %w; {SAME}); u = Conv(z, %v; {SAME}); y = Add(t, u)",
     f"t = Concat(x, z; axis=1); s = Concat(%w, %v; axis=1); y = Conv(t, s; {SAME})"),
    # pooling
    ("pool", "average pool is linear", IMAGES,
     f"t = AveragePool(x; {POOL}); u = AveragePool(z; {POOL}); y = Add(t, u)",
     f"t = Add(x, z); y = AveragePool(t; {POOL})"),
    ("pool", "concat of channels", IMAGES,
     f"t = AveragePool(x; {POOL}); u = AveragePool(z; {POOL}); y = Concat(t, u; axis=1)",
     f"t = Concat(x, z; axis=1); y = AveragePool(t; {POOL})"),
    ("pool", "scale", IMAGES,
     f"t = AveragePool(x; {POOL}); y = Mul(t, k)", f"t = Mul(x, k); y = AveragePool(t; {POOL})"),
    ("pool", "average pool is a convolution", IMAGES,
     f"y = AveragePool(x; {POOL})",
     "w: f32[4,1,3,3] = ConstantOfShape(; shape=[4,1,3,3], value=0.1111111111111111); "
     f"y = Conv(x, w; {SAME}, group=4)"),
    # identities
    ("identity", "one", SQUARES,
     "o: f32[] = Constant(; value=[1.0]); t = Mul(a, o); y = Relu(t)", "y = Relu(a)"),
    ("identity", "a residual is a matrix", SQUARES,
     "t = MatMul(a, b); y = Add(t, a)",
     "f = ConstantOfShape(; shape=[6,6], value=1.0); u = Trilu(f; upper=1); i = Trilu(u; upper=0); "
     "s = Add(b, i); y = MatMul(a, s)"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "one", "other"),
    [law[2:] for law in LAWS],
    ids=[f"{family}: {what}" for family, what, *_ in LAWS],
)
def test_is_found_again(inputs: str, one: str, other: str) -> None:
    before, after = graph_of(inputs, one), graph_of(inputs, other)
    assert _enumerate.find_difference(before, after) == "", "the law itself"
    there = _enumerate.derive(before, after, LIBRARY, MAX_STEPS, 200)
    back = _enumerate.derive(after, before, LIBRARY, MAX_STEPS, 200)
    assert there or back, f"{before.text()}{after.text()}"


#: World and formula of laws that no cost favours.
NEUTRAL = (
    ("matrix", "tanh(transpose(a)) = transpose(tanh(a))"),
    ("tensor", "tanh(transpose(x)) = transpose(tanh(x))"),
    ("tensor", "tanh(reshape(x)) = reshape(tanh(x))"),
)


@pytest.mark.parametrize(("world", "law"), NEUTRAL)
def test_is_among_the_candidates(world: str, law: str) -> None:
    """The function stands for any elementwise one, relu too."""
    found = set()
    for each in _enumerate.enumerate_pairs(world, 2)["pairs"]:
        pair = Pair.from_core(world, each)
        for direction in (pair, pair.reversed()):
            if direction.is_possible:
                found |= {formula(text) for text in generalisations(direction)}
    assert law in found
