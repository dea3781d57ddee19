"""Times of calls, from those of the kernels that compute them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from torchrlopt.capture.job import jobs_of
from torchrlopt.executors.eager.executor import EagerCallable, assemble
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.precision.retyped import CONTRACTIONS, lowerable, retyped
from torchrlopt.options import LoweringOptions
from torchrlopt.precision import times
from torchrlopt.torch_private.modes import without_dispatch_modes


def built(model: nn.Module, inputs: Any) -> tuple[list[torch.fx.Node], EagerCallable, EagerCallable, Any]:
    """The calls that may be lowered, the graph in both types, and its inputs."""
    (job,) = jobs_of(model, inputs)
    static = job.captured.static_inputs
    with without_dispatch_modes():
        module = lower_captured(job.captured.model, job.captured)
        calls = lowerable(module.graph, static)
        names = [each.name for each in calls]
        high, low = (assemble(retyped(module, each), static, LoweringOptions()) for each in ((), names))
    return calls, high, low, job.traced.own_inputs()


def test_the_time_of_a_kernel_is_shared_out_by_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "clock_of", lambda device: itertools.count(0, 1000).__next__)
    layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()
    calls, high, low, inputs = built(layers, (torch.randn(32, 64),))
    found = times.measured_times(calls, high, low, None, (), inputs)
    kernels = [each for each in high.main.graph.nodes if each.op == "call_function"]
    assert len(kernels) < len(calls), "the activation is part of a product's kernel"
    assert sum(found.high.values()) == pytest.approx(len(kernels)), "a microsecond for each"
    product, relu = (next(each for each in calls if name in str(each.target)) for name in ("addmm", "relu"))
    ratio = found.high[product.name] / found.high[relu.name]
    assert ratio == pytest.approx(times.work_us(product) / times.work_us(relu))
    assert ratio > 2


def test_kernels_of_the_same_sizes_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    late = itertools.count()  # each kernel takes a microsecond more than the one before
    monkeypatch.setattr(times, "clock_of", lambda device: lambda: sum(range(next(late))) * 1000)
    layers = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 128)
    ).eval()
    calls, high, low, inputs = built(layers, (torch.randn(32, 64),))
    found = times.measured_times(calls, high, low, None, (), inputs)
    first, second, third = (found.high[each.name] for each in calls if each.target in CONTRACTIONS)
    assert first == second < third
