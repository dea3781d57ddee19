"""Analytic cost: torchrlopt/machine/cost."""

from __future__ import annotations

import pytest

from torchrlopt import _C
from torchrlopt.errors import UnsupportedError
from torchrlopt.machine.cost import device_model


def metrics(text: str) -> dict[str, float]:
    return _C.CostModel().total(_C.parse_graph(text))


def test_matmul_counts_by_hand() -> None:
    cost = metrics("graph (x: f32[4,6], %w: f32[6,8]) { y = MatMul(x, %w) return y }")
    assert cost["flops"] == 2 * 4 * 6 * 8
    assert cost["bytes"] == 4 * (4 * 6 + 6 * 8 + 4 * 8)
    assert cost["launches"] == 1


def test_grouped_convolution_counts_by_hand() -> None:
    cost = metrics("graph (x: f32[2,8,5,5], %w: f32[12,4,3,3]) { y = Conv(x, %w; group=2) return y }")
    # 2 images, 12 channels, 3x3 outputs, each 4 channels x 3x3 products.
    assert cost["flops"] == 2 * (2 * 12 * 3 * 3) * (4 * 3 * 3)


def test_batched_matmul_counts_by_hand() -> None:
    cost = metrics("graph (x: f32[3,4,6], y: f32[3,6,8]) { z = MatMul(x, y) return z }")
    assert cost["flops"] == 2 * 3 * 4 * 6 * 8


def test_expressions_over_weights_are_free() -> None:
    free = metrics("graph (%w: f32[64,64], %v: f32[64,64]) { y = MatMul(%w, %v) return y }")
    assert free == {"time_us": 0, "flops": 0, "bytes": 0, "launches": 0}


def test_views_cost_a_dispatch_and_move_nothing() -> None:
    cost = metrics("graph (x: f32[64,64]) { y = Transpose(x; perm=[1,0]) return y }")
    assert cost["bytes"] == 0
    assert 0 < cost["time_us"] < 3


def test_reshape_of_a_transpose_copies() -> None:
    cost = metrics(
        "graph (x: f32[64,64]) { y = Transpose(x; perm=[1,0]) z = Reshape(y; shape=[4096]) return z }"
    )
    assert cost["bytes"] == 2 * 4 * 64 * 64
    assert cost["launches"] == 1


@pytest.mark.parametrize(
    ("text", "is_copy"),
    [
        ("(x: f32[64,64]) { y = Transpose(x; perm=[1,0]) return y }", True),
        ("(x: f32[64,64]) { y = Reshape(x; shape=[4096]) return y }", False),
        # a part of the outermost extent lies in one piece, a part of an inner one does not
        ("(x: f32[1,64,64]) { y, z = Split(x; axis=1, sizes=[16,48]) return y, z }", False),
        ("(x: f32[2,64,64]) { y, z = Split(x; axis=1, sizes=[16,48]) return y, z }", True),
        ("(x: f32[64,64]) { y = Slice(x; axes=[0], starts=[8], ends=[16]) return y }", False),
        ("(x: f32[64,64]) { y = Slice(x; axes=[-1], starts=[8], ends=[16]) return y }", True),
        # but nothing is in one piece where an image has its channels innermost
        ("(x: f32[1,64,8,8]) { y, z = Split(x; axis=1, sizes=[16,48]) return y, z }", True),
    ],
)
def test_without_strides_most_views_are_copies(text: str, is_copy: bool) -> None:
    graph = _C.parse_graph(f"graph {text}")
    for executor, copies in (("eager", False), ("onnxruntime", is_copy), ("openvino", is_copy)):
        cost = _C.CostModel(device_model(executor)).total(graph)
        assert (cost["bytes"] > 0, cost["launches"]) == (copies, int(copies)), executor


def test_concat_moves_what_it_gives() -> None:
    cost = metrics("graph (x: f32[64,64], y: f32[64,64]) { z = Concat(x, y; axis=0) return z }")
    assert cost["bytes"] == 2 * 4 * 128 * 64


def test_one_wide_product_is_cheaper_than_three() -> None:
    narrow = "".join(f" y{i} = MatMul(x, %w{i})" for i in range(3))
    three = metrics(
        "graph (x: f32[128,768], %w0: f32[768,768], %w1: f32[768,768], %w2: f32[768,768]) {"
        + narrow
        + " return y0, y1, y2 }"
    )
    one = metrics(
        "graph (x: f32[128,768], %w: f32[768,2304]) { y = MatMul(x, %w)"
        " a, b, c = Split(y; axis=1, sizes=[768,768,768]) return a, b, c }"
    )
    assert one["time_us"] < three["time_us"]


def test_no_prices_for_an_unknown_executor() -> None:
    with pytest.raises(UnsupportedError, match="no prices"):
        device_model("abacus")
