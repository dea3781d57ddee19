"""Analytic cost: torchrlopt/machine/cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torchrlopt import _C
from torchrlopt.errors import UnsupportedError
from torchrlopt.machine.cost import Price, ProfileStore, device_model
from torchrlopt.machine.cost import model as cost_models
from torchrlopt.options import Options
from torchrlopt.plan.planning import profile_for


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


def test_terms_of_a_sum_follow_each_other() -> None:
    """A dense convolution may take longer than two that do less, however many units a device has."""
    model = _C.DeviceModel()
    model.flops_per_us = model.bytes_per_us = model.cache_bytes_per_us = 1e12
    model.contraction_launch_us, model.step_us = 0, 0.002
    graph = _C.parse_graph("graph (x: f32[1,88,14,14], %w: f32[88,88,7,7]) { y = Conv(x, %w) return y }")
    assert _C.CostModel(model).total(graph)["time_us"] == pytest.approx(88 * 7 * 7 * 0.002, rel=0.05)


@pytest.mark.parametrize(
    ("device", "settings", "is_recorded"),
    [
        ("cuda", {"executor": "eager", "cuda_graphs": True}, True),
        ("cuda", {"executor": "inductor", "cuda_graphs": True}, True),
        ("cuda", {"executor": "eager"}, False),
        ("cuda", {"executor": "tensorrt", "cuda_graphs": True}, False),
        ("cuda", {"executor": "eager", "cuda_graphs": True, "weights": "live"}, False),
        ("cpu", {"executor": "eager", "cuda_graphs": True}, False),
    ],
)
def test_a_replay_waits_for_no_launch(
    device: str,
    settings: dict[str, Any],
    is_recorded: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    store = ProfileStore(tmp_path)
    monkeypatch.setattr(cost_models, "profile_store", lambda: store)
    monkeypatch.setattr(cost_models, "fingerprint", lambda device: "there")
    store.add("there", settings["executor"], [Price(1, 1, "Relu", 9.0, 0.1, 9.0, 1.0, 1)])
    profile = profile_for(Options(**settings), torch.device(device))
    model, usual = profile.device_model(), device_model(settings["executor"], device)
    names = ("launch_us", "contraction_launch_us", "view_us")
    assert all((getattr(model, name) < getattr(usual, name)) == is_recorded for name in names)
    of_cudnn = ("step_us", "group_us", "padding_us", "cut_us")
    assert all((getattr(usual, name) > 0) == (device == "cuda") for name in of_cudnn)
    assert len(profile.prices) == (0 if is_recorded else 1)


def _extra_us(text: str, name: str) -> float:
    """What a graph costs more where this rate is 7 us, and not 0."""
    model, graph = _C.DeviceModel(), _C.parse_graph(text)
    before = _C.CostModel(model).total(graph)["time_us"]
    setattr(model, name, 7.0)
    return float(_C.CostModel(model).total(graph)["time_us"] - before)


@pytest.mark.parametrize(
    ("op", "group", "weight", "times"),
    [
        ("Conv", 8, "16,1,3,3", 8),  # two results for each channel: group by group
        ("FusedConv", 8, "16,1,3,3", 8),
        ("ConvTranspose", 8, "8,2,3,3", 0),
        ("Conv", 8, "8,1,3,3", 0),
        ("Conv", 4, "8,2,3,3", 0),
        ("Conv", 1, "16,8,3,3", 0),
    ],
)
def test_groups_for_which_there_is_no_kernel_run_one_by_one(
    op: str, group: int, weight: str, times: int
) -> None:
    text = (
        f"graph (x: f32[1,8,9,9], %w: f32[{weight}]) "
        f"{{ y = {op}(x, %w; group={group}, pads=[1,1,1,1]) return y }}"
    )
    assert _extra_us(text, "group_us") == pytest.approx(7 * times)


@pytest.mark.parametrize(
    ("dtype", "weight", "times"),
    [
        ("bf16", "12,8,3,3", 1),
        ("f16", "8,12,3,3", 1),
        ("bf16", "8,8,3,3", 0),
        ("bf16", "12,12,1,1", 0),  # a product
        ("f32", "12,12,3,3", 0),
    ],
)
def test_channels_that_fill_no_vector_are_padded(dtype: str, weight: str, times: int) -> None:
    channels = weight.split(",")[1]
    text = f"graph (x: {dtype}[1,{channels},9,9], %w: {dtype}[{weight}]) {{ y = Conv(x, %w) return y }}"
    assert _extra_us(text, "padding_us") == pytest.approx(7 * times)


@pytest.mark.parametrize("axis", [1, -3])
@pytest.mark.parametrize(
    ("readers", "times"),
    [
        ("y = Conv(a, %w) z = Relu(b)", 1),
        ("y = Conv(a, %w) z = Conv(b, %w)", 2),
        ("y = Conv(a, %w) z = Conv(a, %w)", 2),  # each makes its own
        ("y = Conv(x, %v) z = Concat(a, b; axis=1)", 0),
        ("y = Conv(a, %p) z = Conv(b, a)", 2),  # one as an image, and as a weight
    ],
)
def test_parts_of_an_image_that_convolutions_read_are_copied(axis: int, readers: str, times: int) -> None:
    head = "graph (x: f32[8,8,9,9], %w: f32[4,4,3,3], %v: f32[4,8,3,3], %p: f32[4,4,1,1])"
    text = f"{head} {{ a, b = Split(x; axis={axis}, sizes=[4,4]) {readers} return y, z }}"
    assert _extra_us(text, "cut_us") == pytest.approx(7 * times)


def test_terms_of_a_product_do_not_follow_each_other() -> None:
    """CuBLAS divides long sums among units."""
    model = _C.DeviceModel()
    graph = _C.parse_graph("graph (x: f32[1,25088], %w: f32[25088,10]) { y = MatMul(x, %w) return y }")
    before = _C.CostModel(model).total(graph)["time_us"]
    model.step_us = 0.002
    assert _C.CostModel(model).total(graph)["time_us"] == before


def test_no_prices_for_an_unknown_executor() -> None:
    with pytest.raises(UnsupportedError, match="no prices"):
        device_model("abacus")
