"""float16 on a CPU without kernels for it: computed in float32, rounded at the same places."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torchrlopt
from tests.crosses import nightly_but
from torchrlopt.executors.weights import half_precision
from torchrlopt.executors.weights.half_precision import available_bytes, compute_half_in_float32

aten = torch.ops.aten

pytestmark = pytest.mark.skipif(not half_precision.lacks_kernels(), reason="this CPU has kernels for float16")


def widened(function: Callable[..., Any], *args: Tensor) -> tuple[list[fx.Node], fx.GraphModule]:
    """The calls of a function of an input and weights, and the graph itself."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(arg) for arg in args]
        module = make_fx(function)(*fakes)
    names = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
    compute_half_in_float32(module, names[1:])
    module.graph.lint()
    module.recompile()
    return [node for node in module.graph.nodes if node.op == "call_function"], module


def check(function: Callable[..., Any], *args: Tensor) -> dict[str, torch.dtype]:
    """Compare with float64; the dtypes of the calls by name."""
    calls, module = widened(function, *args)
    got, plain = module(*args), function(*args)
    exact = function(*[arg.double() if arg.is_floating_point() else arg for arg in args])
    assert (got.dtype, got.stride()) == (plain.dtype, plain.stride())
    torch.testing.assert_close(got.double(), exact.double(), rtol=4e-3, atol=4e-3)
    return {
        str(node.target).removeprefix("aten."): node.meta["val"].dtype
        for node in calls
        if isinstance(node.meta["val"], Tensor)
    }


def half(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) / 4).half()


def test_what_follows_a_convolution_follows_it() -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(F.conv2d(x, w, b, padding=1)), 2)
        return F.conv2d(torch.cat([y, y * 2], 1), torch.cat([w, w], 1)).mean((2, 3))

    found = check(function, half(2, 6, 12, 12), half(6, 6, 3, 3), half(6))
    for name in ("convolution.default", "relu.default", "mul.Tensor", "mean.dim"):
        assert found[name] is torch.float32
    calls, _ = widened(function, half(2, 6, 12, 12), half(6, 6, 3, 3), half(6))
    casts = [node for node in calls if node.target is aten._to_copy.default]
    assert len(casts) == 4  # the input, weight and bias; the output


def test_expressions_over_weights_are_not_rounded_to_float16() -> None:
    """A scale that is folded into a weight may bring it below what float16 can tell apart."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return x @ (w * 2.0**-20).t() * 2.0**20

    x, w = half(8, 16), half(16, 16)
    _, module = widened(function, x, w)
    torch.testing.assert_close(module(x, w).double(), x.double() @ w.double().t(), rtol=2e-3, atol=2e-3)


def test_outputs_that_are_cast_are_tensors_of_their_own() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y.float(), y.float()

    _, module = widened(function, half(8, 16), half(16, 16))
    first, second = module(half(8, 16), half(16, 16))
    assert first.dtype is second.dtype is torch.float32
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.nan_to_num((x @ w) / 0 * 1, nan=1.0),
        lambda x, w: torch.floor(8 * (x @ w)),
        lambda x, w: torch.div(x @ w, 0.1, rounding_mode="trunc"),
        lambda x, w: (x @ w) > 0.25,
    ],
)
def test_what_depends_on_the_dtype_sees_the_dtype(function: Callable[..., Any]) -> None:
    args = half(8, 16), half(16, 16)
    calls, module = widened(function, *args)
    assert calls[-1].args[0].meta["val"].dtype is torch.float16  # type: ignore[union-attr]
    if calls[-1].target is aten.nan_to_num.default:
        assert torch.equal(module(*args).isinf(), function(*args).isinf())
        assert module(*args).abs().max() == torch.finfo(torch.float16).max


@pytest.mark.parametrize("reason", ["float32", "no contraction", "written to", "kernels", "memory"])
def test_what_stays(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.sin(x) if reason == "no contraction" else x @ w
        return y.add_(1) if reason == "written to" else y + 1

    args = half(8, 16), half(16, 16)
    if reason == "float32":
        args = args[0].float(), args[1].float()
    if reason == "kernels":
        monkeypatch.setattr(half_precision.platform, "machine", lambda: "aarch64")
    if reason == "memory":
        monkeypatch.setattr(half_precision, "available_bytes", lambda: 2 * 4 * 16 * 16 - 1)
    calls, _ = widened(function, *args)
    assert len(calls) == 2
    monkeypatch.setattr(half_precision, "available_bytes", lambda: 2 * 4 * 16 * 16)
    assert (len(widened(function, *args)[0]) > 2) == (reason == "memory")


def test_memory_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = available_bytes()
    assert found is None or 0 < found < 1 << 50
    monkeypatch.setattr(half_precision, "Path", lambda name: tmp_path / name.lstrip("/"))
    assert available_bytes() is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8 kB\n")
    assert available_bytes() == 8192
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in (("max", "5000\n"), ("current", "1000\n")):
        (tmp_path / f"sys/fs/cgroup/memory.{name}").write_text(text)
    assert available_bytes() == 4000
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert available_bytes() == 8192


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.norm(self.conv(x)))
        return self.head(y.mean((2, 3))), y.amax((2, 3))


@pytest.mark.parametrize("executor", nightly_but(["eager"], ["eager", "inductor"]))
@pytest.mark.parametrize("numerics", ["real", "strict"])
def test_a_model_in_float16(executor: str, numerics: str) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        model.norm.weight.uniform_(0.5, 2)
    exact = Net().eval().double()
    exact.load_state_dict(model.state_dict())
    model, x = model.half(), torch.randn(2, 3, 24, 24).half()
    torch._dynamo.reset()
    settings: dict[str, Any] = {"min_gain": -10.0, "on_error": "raise", "cache": False}
    fast = torchrlopt.optimise(model, x, executor=executor, numerics=numerics, **settings)
    with torch.no_grad():
        for scale in (1.0, 2.0):
            model.head.weight.mul_(scale)
            exact.head.weight.mul_(scale)
            for got, plain, wide in zip(fast(x), model(x), exact(x.double()), strict=True):
                assert (got.dtype, got.stride()) == (plain.dtype, plain.stride())
                torch.testing.assert_close(got.double(), wide, rtol=1e-2, atol=1e-2)


def test_autocast_to_float16() -> None:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 24, 24)
    torch._dynamo.reset()
    settings: dict[str, Any] = {"min_gain": -10.0, "on_error": "raise"}
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        compiled = torch.compile(model, backend="rlopt", options=settings)
        for got, plain in zip(compiled(x), model(x), strict=True):
            assert got.dtype == plain.dtype
            torch.testing.assert_close(got, plain, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("number", [65536, 1e-7, 3e-8])
def test_numbers_that_float16_does_not_hold_are_not_held_in_it(number: float) -> None:
    """ATen computes with them as they are."""

    class Model(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            scaled = (x @ w) / number if number > 1 else (x @ w) * number
            return scaled @ w, 1000 * x * number

    x, w = half(8, 16), half(16, 16)
    torch._dynamo.reset()
    settings: dict[str, Any] = {"min_gain": -10.0, "on_error": "raise", "cache": False}
    model = Model().eval()
    fast = torchrlopt.optimise(model, (x, w), **settings)
    for got, plain in zip(fast(x, w), model(x, w), strict=True):
        torch.testing.assert_close(got, plain, rtol=1e-2, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("executor", nightly_but(["eager"], ["eager", "inductor"]))
def test_outputs_share_memory_as_they_did(executor: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(half(4, 4), requires_grad=False)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = (x @ self.table).relu() @ self.table
            return y, self.table.t(), y.t(), self.table.view(2, 8)[:, :3]

    model, x = Model().eval(), half(3, 4)
    torch._dynamo.reset()
    settings: dict[str, Any] = {"min_gain": -10.0, "on_error": "raise", "cache": False}
    fast = torchrlopt.optimise(model, x, executor=executor, **settings)
    assert fast.report.kept == "rewritten"
    for _ in range(2):
        first, *others = fast(x)
        memory = [first.data_ptr(), *(other.data_ptr() for other in others)]
        table = model.table.data_ptr()
        assert memory == [first.data_ptr(), table, first.data_ptr(), table]


@pytest.mark.parametrize("executor", ["onnxruntime", "openvino"])
def test_runtimes_are_not_less_exact_than_float16(executor: str) -> None:
    """OpenVINO computes in bfloat16 where float16 is asked of a CPU without kernels for it."""
    pytest.importorskip(executor)
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.Tanh()) for _ in range(4))
    model = nn.Sequential(*layers).eval().half()
    exact, x = copy.deepcopy(model).double(), half(1, 32, 16, 16)
    torch._dynamo.reset()
    settings: dict[str, Any] = {"min_gain": -10.0, "on_error": "raise", "cache": False}
    fast = torchrlopt.optimise(model, x, executor=executor, **settings)
    with torch.no_grad():
        wide = exact(x.double())
        error, own = ((each.double() - wide).abs().max() for each in (fast(x), model(x)))
    assert error <= 2 * own
