"""Runtimes that `executor="default"` tries before eager PyTorch: torchrlopt/plan/runtime_prediction.py."""

from __future__ import annotations

import pytest

from torchrlopt import _C
from torchrlopt.executors import registry
from torchrlopt.plan.runtime_prediction import predicted_winners, price_ratio

RUNTIMES = ("onnxruntime", "openvino")


@pytest.fixture(autouse=True)
def _all_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"cpu": ("eager", *RUNTIMES, "inductor"), "cuda": ("eager", "tensorrt", "inductor")}
    monkeypatch.setattr(registry, "available", here.__getitem__)


def layers(count: int, width: int, rows: int | str = 8) -> _C.Graph:
    """Products of rows with `width` squared weights each."""
    builder = _C.GraphBuilder()
    value = (builder.add_input("x", ("f32", [rows, width])), 0)
    for i in range(count):
        weight = (builder.add_input(f"w{i}", ("f32", [width, width]), True), 0)
        value = (builder.add_node("MatMul", [value, weight], {}), 0)
    builder.set_outputs([value], ["y"])
    return builder.finish()


@pytest.mark.parametrize(
    ("count", "width", "device", "wanted"),
    [
        (200, 64, "cpu", RUNTIMES),
        (12, 2048, "cpu", ()),  # few large operators
        (20, 64, "cpu", ()),  # less than a millisecond
        (200, 64, "cuda", ()),
    ],
)
def test_many_small_operators_go_to_a_runtime(
    count: int, width: int, device: str, wanted: tuple[str, ...]
) -> None:
    assert set(predicted_winners(layers(count, width), {}, device)) == set(wanted)


def test_without_a_runtime_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "available", lambda device_type: ("eager", "inductor"))
    assert predicted_winners(layers(200, 64), {}, "cpu") == ()


def test_a_symbol_counts_as_its_example_size() -> None:
    graph = layers(200, 64, "n")
    assert predicted_winners(graph, {"n": 8}, "cpu") == ("onnxruntime",)
    assert predicted_winners(graph, {"n": 65536}, "cpu") == ()


def test_what_prepares_itself_for_each_size_is_not_foreseen_where_sizes_vary() -> None:
    assert "openvino" in predicted_winners(layers(200, 64, 8), {}, "cpu")
    assert "openvino" not in predicted_winners(layers(200, 64, "n"), {"n": 8}, "cpu")


def test_where_operators_are_small_the_one_that_starts_them_for_less_is_cheaper() -> None:
    assert price_ratio(layers(200, 64), {}, "openvino", "eager") < 0.9
    assert price_ratio(layers(200, 64), {}, "eager", "openvino") > 1.1
    assert price_ratio(layers(12, 2048), {}, "openvino", "eager") == pytest.approx(1.0, abs=0.05)
    assert price_ratio(layers(20, 64, "n"), {"n": 8}, "inductor", "inductor") == 1.0


def test_who_fuses_elementwise_operators_is_cheaper_for_a_chain_of_them() -> None:
    """So inductor is tried beside a runtime that does not, whatever the times."""
    builder = _C.GraphBuilder()
    value = (builder.add_input("x", ("f32", [256, 4096])), 0)
    for name in ("Sin", "Exp", "Tanh", "Sqrt", "Sigmoid") * 4:
        value = (builder.add_node(name, [value], {}), 0)
    builder.set_outputs([value], ["y"])
    assert price_ratio(builder.finish(), {}, "inductor", "onnxruntime") < 0.3
