"""The executors other than eager PyTorch, and the choice among all of them, on small real models."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import torchrlopt
from tests.crosses import nightly_but
from tests.e2e.models import RUNTIMES, lowered
from torchrlopt import executor_table
from torchrlopt.compile import backend
from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.report import Report

EXECUTORS = ["inductor", "onnxruntime", "openvino"]


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    executor = getattr(request.node, "callspec", None) and request.node.callspec.params.get("executor")
    row = executor_table.row_of(executor) if executor is not None else None
    if row is not None and row.package is not None:
        pytest.importorskip(row.package, reason="the executor needs it")


class Net(nn.Module):
    """Convolution, normalisation, residual, two merged linears, an output that is a view and one an input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.left, self.right = nn.Linear(8, 6), nn.Linear(8, 5)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(self.norm(self.conv(x)))
        z = y.mean((2, 3))
        return torch.cat([self.left(z), self.right(z)], 1), y.transpose(1, 3), x


def build(seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    return Net().eval(), torch.randn(2, 3, 12, 12)


def optimised(model: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    return torchrlopt.optimise(model, x, cache=False, on_error="raise", min_gain=-10, **options)


def check(ours: Any, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        for got, expected in zip(ours(x), model(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, check_stride=True)


@pytest.mark.parametrize(
    ("executor", "weights"),
    nightly_but(
        [("onnxruntime", "live"), ("openvino", "frozen")],
        itertools.product(EXECUTORS, ["check", "live", "frozen"]),
    ),
)
def test_right_also_for_other_weights(executor: str, weights: str) -> None:
    model, x = build()
    ours = optimised(model, x, executor=executor, weights=weights)
    assert ours.report.kept == "rewritten"
    assert ours.report.executor == executor
    check(ours, model, x)
    if weights == "frozen":
        return
    with torch.no_grad():
        model.conv.weight.mul_(-0.5)
        model.right.bias.add_(1.0)
    check(ours, model, x)
    model.load_state_dict(build(1)[0].state_dict())
    check(ours, model, x)


@pytest.mark.parametrize("executor", nightly_but(["onnxruntime"], EXECUTORS))
def test_sizes_that_vary(executor: str) -> None:
    model = nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    torch._dynamo.reset()
    options = {"executor": executor, "on_error": "raise", "cache": False, "min_gain": -10.0}
    ours = torch.compile(model, backend="rlopt", options=options, dynamic=True)
    for rows in (5, 3, 17, 1):
        x = torch.randn(rows, 7)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("executor", nightly_but(["eager", "onnxruntime"], ["eager", *EXECUTORS]))
def test_frozen_weights_are_not_passed_and_modules_not_guarded(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_inputs = []
    compile_graph = backend.compile_graph

    def counted(gm: Any, example_inputs: Any, *others: Any) -> Any:
        num_inputs.append(len(example_inputs))
        return compile_graph(gm, example_inputs, *others)

    monkeypatch.setattr(backend, "compile_graph", counted)
    model, x = build()
    ours = optimised(model, x, executor=executor, weights="frozen")
    check(ours, model, x)
    assert num_inputs == [1]
    expected = ours(x)[0]
    with torch.no_grad():
        model.left.weight.mul_(-1.0)  # the promise is broken: nobody looks
    model.norm.eps *= 2
    torch.testing.assert_close(ours(x)[0], expected, rtol=0, atol=0)
    assert num_inputs == [1], "nothing was compiled again"
    with torch.no_grad():
        model.left.weight.mul_(-1.0)
    model.norm.eps /= 2
    other = torch.randn(3, 3, 9, 9)  # another graph, and the weights are passed to that one
    check(ours, model, other)
    check(ours, model, x)


def test_inductor_compiles_once_for_a_set_of_weights() -> None:
    import torch._dynamo.utils

    model, x = build()
    torch._dynamo.utils.counters.clear()
    ours = optimised(model, x, executor="inductor", executor_options={"freezing": True})
    check(ours, model, x)
    assert torch._dynamo.utils.counters["inductor"]["mkldnn_conv_weight_pack_matcher_count"] == 1
    before = lowered().num_compilations
    check(ours, model, x)
    assert lowered().num_compilations == before
    with torch.no_grad():
        model.left.weight.mul_(0.5)
    check(ours, model, x)
    assert lowered().num_compilations == before + 1


def test_nobody_else_compiles_while_inductor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that another thread loads meanwhile would be taken for ours, and removed from inductor's list."""
    from torch._dynamo.convert_frame import compile_lock

    plain = torch._inductor.compile
    is_free: list[bool] = []

    def compile_one(*args: Any, **options: Any) -> Any:
        with ThreadPoolExecutor(1) as other:
            is_free.append(other.submit(compile_lock.acquire, blocking=False).result())
        return plain(*args, **options)

    model, x = build()
    ours = optimised(model, x, executor="inductor")
    check(ours, model, x)
    monkeypatch.setattr(torch._inductor, "compile", compile_one)
    with torch.no_grad():
        model.left.weight.mul_(0.5)
    check(ours, model, x)  # outside of Dynamo, which holds the lock itself
    assert is_free == [False]


@pytest.mark.nightly
def test_export_still_works_after_inductor() -> None:
    """Kernels that our trace puts aside are back before another compiler looks at them."""
    model = nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(3, 4, 3)).eval()
    x = torch.randn(1, 3, 6, 6)
    check_one = optimised(model, x, executor="inductor")
    with torch.no_grad():
        torch.testing.assert_close(check_one(x), model(x), rtol=1e-4, atol=1e-5)
    torch.onnx.export(model, (x,), dynamo=True, verbose=False)


def test_settings_reach_the_executor() -> None:
    model, x = build()
    with pytest.raises(LoweringError, match="no_such_setting"):
        optimised(model, x, executor="inductor", executor_options={"no_such_setting": 1})
    ours = optimised(model, x, executor="onnxruntime", executor_options={"session.use_env_allocators": 0})
    check(ours, model, x)


class PaddedKernel(nn.Module):
    """A kernel that is enlarged in place, as substitutions do before they add kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (nn.functional.conv2d(x, nn.functional.pad(self.weight, (1, 1, 1, 1)), padding=1),)


def test_onnxruntime_leaves_padded_kernels_alone() -> None:
    torch.manual_seed(0)
    model, x = PaddedKernel().eval(), torch.randn(2, 3, 12, 12)
    check(optimised(model, x, executor="onnxruntime", searcher="none"), model, x)


class Apply(nn.Module):
    """Any function as a module."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x)


@pytest.mark.parametrize("executor", ["openvino"])
def test_openvino_refuses_64_bits(executor: str) -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * x).sum(-1)

    with pytest.raises(UnsupportedError, match="32 bits"):
        optimised(Wide().eval(), torch.arange(2**31, 2**31 + 8).reshape(2, 4), executor=executor)
    with pytest.raises(UnsupportedError, match="32 bits"):
        optimised(Wide().eval(), torch.randn(2, 4, dtype=torch.float64), executor=executor)
    for compute in (lambda x: (x > 2**31).float(), lambda x: x.t()[:1]):
        wide = Apply(compute).eval()
        with pytest.raises(UnsupportedError, match="32 bits"):
            optimised(wide, torch.arange(2**31, 2**31 + 8).reshape(2, 4), executor=executor)
    table = nn.Embedding(9, 4).eval()
    ours = optimised(table, torch.arange(9), executor=executor)
    torch.testing.assert_close(ours(torch.arange(8, -1, -1)), table.weight.detach().flip(0))


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("executor", ["openvino"])
def test_openvino_takes_bfloat16(executor: str, is_dynamic: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 4)).eval().bfloat16()
    torch._dynamo.reset()
    options = {"executor": executor, "on_error": "raise", "cache": False, "min_gain": -10.0}
    ours = torch.compile(model, backend="rlopt", options=options, dynamic=is_dynamic)
    for rows in (3, 5):
        x = torch.randn(rows, 7).bfloat16()
        with torch.no_grad():
            first = ours(x)
            torch.testing.assert_close(first, model(x), rtol=2e-2, atol=2e-2)
            kept = first.clone()
            ours(-x)
        torch.testing.assert_close(first, kept, rtol=0, atol=0)  # a result is the caller's own


class Timed(nn.Module):
    """Angles in float32 in a model in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angle = t[:, None] * torch.linspace(0.5, 1, 8)
        out: torch.Tensor = self.linear(angle.cos().to(x.dtype)) + x
        return out


@pytest.mark.parametrize("executor", ["openvino"])
def test_openvino_computes_in_float32_what_is_float32(executor: str) -> None:
    torch.manual_seed(0)
    model, x = Timed().eval(), torch.randn(4, 8).bfloat16()
    torch._dynamo.reset()
    options = {"executor": executor, "on_error": "raise", "cache": False, "min_gain": -10}
    ours = torchrlopt.optimise(model, (x, torch.rand(4)), **options)
    t = torch.tensor([981.0, 761.0, 501.0, 333.0])  # bfloat16 has 980 and 760
    with torch.no_grad():
        torch.testing.assert_close(ours(x, t), model(x, t), rtol=2e-2, atol=2e-2)


SIGNAL = """
import gc, os, signal, threading, torch, torchrlopt
from torch import nn

signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval(), torch.randn(3, 8)
options = {"searcher": "greedy", "measure": False, "cache": False, "on_error": "raise"}
models = [torchrlopt.optimise(model, x, executor=EXECUTOR, **options) for _ in range(2)]
assert models[0].report.kept == "rewritten"

def drop():
    models.pop(0)
    torch._dynamo.reset()
    gc.collect()

for _ in range(2):
    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.parametrize("executor", nightly_but(RUNTIMES[:1], RUNTIMES))
def test_signals_are_handled_after_a_graph_has_died_in_another_thread(executor: str) -> None:
    """OpenVINO's core takes the stack of signal handlers away when it dies."""
    script = SIGNAL.replace("EXECUTOR", repr(executor))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n" * 2), done.stderr


def test_inductor_lets_go_of_weights_that_have_changed() -> None:
    model, x = nn.Linear(53, 211).eval(), torch.randn(3, 53)

    def copies() -> int:
        gc.collect()
        tensors = [
            o for o in gc.get_objects() if isinstance(o, torch.Tensor) and not isinstance(o, FakeTensor)
        ]
        return sum(tensor.numel() == model.weight.numel() for tensor in tensors)

    ours = optimised(model, x, executor="inductor")
    with torch.no_grad():
        ours(x)
        once = copies()
        for _ in range(3):
            model.weight.mul_(1.5)
            torch.testing.assert_close(ours(x), model(x))
    assert lowered().num_compilations == 4
    assert copies() == once


@pytest.mark.nightly
def test_auto_keeps_the_fastest_and_remembers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHRLOPT_CACHE_DIR", str(tmp_path))
    model, x = build()
    options = {"executor": "auto", "on_error": "raise", "min_gain": -10.0}
    torch._dynamo.reset()
    ours = torchrlopt.optimise(model, x, **options)
    check(ours, model, x)
    report = ours.report
    assert [choice.executor for choice in report.choices] == [
        "eager", *(name for name in [*RUNTIMES, "inductor"] for _ in range(2)),
    ]  # fmt: skip
    usable = [choice for choice in report.choices if choice.reason is None]
    (best,) = (c for c in usable if (c.executor, c.searcher) == (report.executor, report.searcher))
    assert all(choice.ratio is not None for choice in usable), "every one that works was timed"
    assert "tried" in str(report)
    assert Report.from_json(report.to_json()) == report

    torch._dynamo.reset()
    again = torchrlopt.optimise(model, x, **options)
    check(again, model, x)
    assert [(c.executor, c.searcher) for c in again.report.choices] == [(best.executor, best.searcher)]
