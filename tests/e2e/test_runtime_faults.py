"""A runtime that crashes, hangs or exhausts memory ends a separate process, never the program.

Faults are injected into the real runtimes: a `sitecustomize` on that process's path patches their methods.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.crosses import nightly_but
from tests.e2e.models import RUNTIMES, build
from tests.e2e.test_default_runtime import DEFAULT, ManySmall
from torchrlopt.compile import backend
from torchrlopt.errors import RlOptError
from torchrlopt.executors.isolation import task, verdicts
from torchrlopt.executors.onnx_runtimes import first_run, operator_probe, session_call

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "own_process")

STAGES = {
    "onnxruntime": {
        "probe": ("onnxruntime", "InferenceSession", "'disabled_optimizers' not in named"),
        "build": ("onnxruntime", "InferenceSession", "'disabled_optimizers' in named"),
        "run": ("onnxruntime.InferenceSession", "run_with_ort_values", "True"),
    },
    "openvino": {
        "probe": ("openvino.Core", "query_model", "True"),
        "build": ("openvino.Core", "compile_model", "True"),
        "run": ("openvino._ov_api.InferRequest", "infer", "True"),
    },
}
FAULTS = {
    "abort": ("os.abort()", "SIGABRT"),
    "crash": ("ctypes.string_at(0)", "SIGSEGV"),
    "hang": ("time.sleep(1000)", "not done after"),
    "fill": ("np.ones(20 << 30, np.uint8)", "memory"),
    "leave": ("os._exit(0)", "without an answer"),
}
SITE = """
import ctypes, os, sys, time
import numpy as np
import {package}

def with_fault(plain):
    def faulty(*args, **named):
        if {condition}:
            {fault}
        return plain(*args, **named)
    return faulty

{owner}.{name} = with_fault({owner}.{name})
"""
X = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
OPTIONS: dict[str, Any] = {"searcher": "greedy", "measure": False, "min_gain": -10.0}


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known from other tests."""
    monkeypatch.setattr(verdicts, "_KNOWN", {})
    monkeypatch.setattr(operator_probe, "_ANSWERS", {})


@pytest.fixture
def inject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Puts a fault into a stage of a runtime."""
    folder = tmp_path / "site"
    folder.mkdir()

    def put(package: str, stage: str, fault: str) -> None:
        owner, name, condition = STAGES[package][stage]
        text = SITE.format(
            package=package, owner=owner, name=name, condition=condition, fault=FAULTS[fault][0]
        )
        with (folder / "sitecustomize.py").open("a", encoding="utf-8") as file:
            file.write(text)
        monkeypatch.syspath_prepend(str(folder))
        if fault == "hang":
            monkeypatch.setattr(first_run, "LEAST_S", 3.0)
            monkeypatch.setattr(session_call, "PROBE_S", 3.0)
        for module in (first_run, session_call):
            monkeypatch.setattr(module, "available_bytes", lambda: 8 << 30)

    return put


class Small(nn.Module):
    """Two linears that are merged, and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.cat([self.a(x), self.b(x)], 1).tanh())


@pytest.mark.parametrize(
    ("executor", "stage", "fault"),
    nightly_but(
        [
            *((name, "probe", "abort") for name in RUNTIMES[:1]),
            *((name, "run", "hang") for name in RUNTIMES[:1]),
            *((name, "build", "fill") for name in RUNTIMES[:1]),
            *(
                (name, stage, fault)
                for name in RUNTIMES[1:]
                for stage, fault in (("build", "crash"), ("run", "leave"))
            ),
        ],
        itertools.product(RUNTIMES, ["probe", "build", "run"], FAULTS),
    ),
)
def test_the_program_goes_on(
    executor: str, stage: str, fault: str, inject: Callable[[str, str, str], None]
) -> None:
    inject(executor, stage, fault)
    model = build(Small)
    fast = torchrlopt.optimise(model, (X,), executor=executor, cache=False, **OPTIONS)
    with torch.no_grad():
        torch.testing.assert_close(fast(X), model(X))
    if stage == "probe":  # all nodes are refused one by one; the graph as a whole survives its trial
        assert any(FAULTS[fault][1] in str(each) for each in verdicts._KNOWN.values())
    else:
        assert fast.report.kept == "original"
        assert FAULTS[fault][1] in str(fast.report.fallback_reason)


def test_the_default_goes_on_with_pytorch(inject: Callable[[str, str, str], None]) -> None:
    for executor in RUNTIMES:
        inject(executor, "build", "abort")
    model, x = build(ManySmall), torch.randn(1, 16, 8, 8)
    fast = torchrlopt.optimise(model, (x,), **DEFAULT)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert fast.report.executor == "eager"
    reasons = [str(each.reason) for each in fast.report.choices if each.executor in RUNTIMES]
    assert reasons
    assert all("SIGABRT" in reason for reason in reasons)


@pytest.mark.parametrize("executor", RUNTIMES)
def test_another_process_knows_of_a_crash(
    executor: str, inject: Callable[[str, str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(executor, "build", "abort")
    model = build(Small)
    for is_first in (True, False):
        with pytest.raises(RlOptError, match="SIGABRT") as caught:
            torchrlopt.optimise(model, (X,), executor=executor, on_error="raise", **OPTIONS)
        assert ("remembered" in str(caught.value)) != is_first
        start_anew(monkeypatch)


def start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process, which may not try anything."""

    def never(module: Path, task: Any) -> Any:
        raise AssertionError(f"{task.what} is tried again")

    torch._dynamo.reset()
    backend.reset()
    verdicts._KNOWN.clear()
    operator_probe._ANSWERS.clear()
    monkeypatch.setattr(task, "run_task", never)


class Residual(nn.Module):
    """Small products whose residual comes from elementwise operators: OpenVINO 2026.4.1 crashes on them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ModuleList(nn.Linear(96, 192) for _ in range(3))
        self.b = nn.ModuleList(nn.Linear(192, 96) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for a, b in zip(self.a, self.b, strict=True):
            x = x + b(nn.functional.gelu(a(x)))
        return x


def test_openvino_runs_chains_of_small_products() -> None:
    pytest.importorskip("openvino", reason="the executor needs it")
    model, x = build(Residual), torch.randn(8, 96)
    fast = torchrlopt.optimise(model, (x,), executor="openvino", on_error="raise", **OPTIONS)
    assert fast.report.executor == "openvino"
    assert fast.report.kept == "rewritten"
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
