"""Metrics of whole graphs against hand counts: csrc/cost/cost.cpp."""

from __future__ import annotations

import pytest

from torchrlopt import _C


def metrics(text: str, **sizes: int) -> dict[str, float]:
    return _C.CostModel(sizes=sizes).metrics(_C.parse_graph(text))


MLP = """graph (x: f32[8,32], %w1: f32[32,64], %b1: f32[64], %w2: f32[64,16]) {
  h = MatMul(x, %w1)
  s = Add(h, %b1)
  r = Relu(s)
  y = MatMul(r, %w2)
  return y
}"""


def test_mlp() -> None:
    found = metrics(MLP)
    assert found["launches"] == 4
    assert found["flops"] == 2 * 8 * 32 * 64 + 8 * 64 + 8 * 64 + 2 * 8 * 64 * 16
    h, y = 8 * 64, 8 * 16
    # x, w1 -> h; h, b1 -> s; s -> r; r, w2 -> y
    elements = (8 * 32 + 32 * 64 + h) + (h + 64 + h) + (h + h) + (h + 64 * 16 + y)
    assert found["bytes"] == 4 * elements
    assert found["peak_bytes"] == 4 * 2 * h  # an operand and the result of the same size


CONV = """graph (x: f32[1,3,10,10], %w: f32[8,3,3,3], %b: f32[8]) {
  c = Conv(x, %w, %b)
  r = Relu(c)
  p = MaxPool(r; kernel_shape=[2,2], strides=[2,2])
  s = Add(r, r)
  return p, s
}"""


def test_convolution_and_two_outputs() -> None:
    found = metrics(CONV)
    out, pooled = 8 * 8 * 8, 8 * 4 * 4
    assert found["launches"] == 4
    assert found["flops"] == (2 * out * 27 + out) + out + 4 * pooled + out
    inputs = 3 * 10 * 10 + 8 * 3 * 3 * 3 + 8
    assert found["bytes"] == 4 * ((inputs + out) + 2 * out + (out + pooled) + 3 * out)
    # While s is written r is still read, and p waits for the caller.
    assert found["peak_bytes"] == 4 * (out + pooled + out)


ATTENTION = """graph (q: f32[2,4,16,8], k: f32[2,4,24,8], v: f32[2,4,24,8]) {
  t = Transpose(k; perm=[0,1,3,2])
  a = MatMul(q, t)
  s = Softmax(a)
  y = MatMul(s, v)
  return y
}"""


def test_attention_written_out() -> None:
    found = metrics(ATTENTION)
    heads, scores = 2 * 4, 2 * 4 * 16 * 24
    assert found["launches"] == 3, "the transpose is a view"
    assert found["flops"] == 2 * heads * 16 * 8 * 24 + 8 * scores + 2 * heads * 16 * 24 * 8
    q, k = 2 * 4 * 16 * 8, 2 * 4 * 24 * 8
    assert found["bytes"] == 4 * ((q + k + scores) + 2 * scores + (scores + k + q))
    assert found["peak_bytes"] == 4 * 2 * scores


def test_fused_attention() -> None:
    found = metrics(
        "graph (q: f32[2,4,16,8], k: f32[2,4,24,8], v: f32[2,4,24,8]) { y = Attention(q, k, v) return y }"
    )
    assert found["flops"] == 4 * (2 * 4 * 16 * 8) * 24
    assert found["peak_bytes"] == 4 * 2 * 4 * 16 * 8, "the scores are never written"


def test_views_keep_what_they_look_at_alive() -> None:
    found = metrics(
        "graph (x: f32[64,64]) { a = Relu(x) t = Transpose(a; perm=[1,0]) b = Neg(x) c = Add(t, b) return c }"
    )
    assert found["peak_bytes"] == 3 * 4 * 64 * 64


def test_weights_and_what_is_computed_from_them_take_no_memory_of_a_call() -> None:
    found = metrics(
        "graph (x: f32[2,8], %w: f32[8,8], %v: f32[8,8]) { u = MatMul(%w, %v) y = MatMul(x, u) return y }"
    )
    assert found["peak_bytes"] == 4 * 2 * 8


SYMBOLIC = "graph (x: f32[s0,32], %w: f32[32,64]) { y = MatMul(x, %w) return y }"


@pytest.mark.parametrize("rows", [1, 7, 512])
def test_symbols_count_as_their_examples(rows: int) -> None:
    static = metrics(SYMBOLIC.replace("s0", str(rows)))
    assert metrics(SYMBOLIC, s0=rows) == static


def test_symbols_without_an_example_count_as_sixteen() -> None:
    assert metrics(SYMBOLIC, other=3) == metrics(SYMBOLIC.replace("s0", "16"))


def test_sizes_in_products_sums_and_quotients() -> None:
    text = "graph (x: f32[2*s0+1,s0*s1,(s0)//(s1)]) { y = Relu(x) return y }"
    assert metrics(text, s0=7, s1=2)["bytes"] == 2 * 4 * 15 * 14 * 3
