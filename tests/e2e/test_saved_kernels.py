"""`torchrlopt.load` runs a saved program with kernels; what they cannot do, the plain program does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import torchrlopt
from tests.e2e.models import QUICK, Branches, ConvNorm, build
from torchrlopt.api import loaded
from torchrlopt.executors.eager.executor import EagerCallable
from torchrlopt.executors.eager.kernels import indirect

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.skipif(not indirect.kernels(torch.float32), reason="no kernels for this processor"),
]

X = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))


class Convolutions(nn.Module):
    """With a pool, and enough kernels in a row for a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(ConvNorm(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU())
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.parts(x).mean((2, 3)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    saved = tmp_path_factory.mktemp("convolutions") / "fast.pt2"
    fast = torchrlopt.optimise(build(Convolutions), X, **QUICK)
    report = torchrlopt.save(fast, saved)
    assert report.step_counts() == fast.report.step_counts() != {}
    return saved


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each run with kernels."""
    made: list[int] = []
    plain = EagerCallable.__call__

    def counted(self: EagerCallable, *args: Any) -> Any:
        made.append(1)
        return plain(self, *args)

    monkeypatch.setattr(EagerCallable, "__call__", counted)
    return made


def targets(module: nn.Module) -> str:
    """What the calls of a loaded module run."""
    return " ".join(str(node.target) for node in module.forward._lowered.main.graph.nodes)  # type: ignore[union-attr]


def test_calls_run_with_kernels(path: Path, runs: list[int]) -> None:
    module, plain = torchrlopt.load(path), torchrlopt.load(path, kernels=False)
    assert all(name in targets(module) for name in ("convolve", "pool", "linear"))
    model = build(Convolutions)
    for number in range(1, 4):
        assert_close(module(X), model(X), rtol=1e-5, atol=1e-6)
        assert len(runs) == number
    assert torch.equal(torchrlopt.load(path)(X), plain(X)), "the first call returns the plain program's"
    assert module.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(copy.deepcopy(module)(X), plain(X))


def test_other_inputs_are_first_compared(path: Path, runs: list[int]) -> None:
    module, plain = torchrlopt.load(path), torchrlopt.load(path, kernels=False)
    module(X)
    last = X.to(memory_format=torch.channels_last)
    for _ in range(2):
        assert_close(module(last), plain(last), rtol=1e-5, atol=1e-6)
    assert len(module.forward._is_right_for) == 2  # type: ignore[union-attr]
    runs.clear()
    for given in (X[:1], X[:, :, 1:], X.double()):
        with pytest.raises(RuntimeError):  # as the plain program
            module(given)
    assert runs == []


def test_weights_may_change(path: Path) -> None:
    module, plain = torchrlopt.load(path), torchrlopt.load(path, kernels=False)
    module(X)
    for change in (lambda each: each.mul_(2), lambda each: each.data.copy_(each + 1)):
        for each in (module, plain):
            with torch.no_grad():
                change(next(each.buffers()))
        assert_close(module(X), plain(X), rtol=1e-5, atol=1e-6)
    for each in (module, plain):
        each.frozen_0 = torch.ones_like(each.frozen_0)
    assert_close(module(X), plain(X), rtol=1e-5, atol=1e-6)


def test_what_is_differentiated_or_compiled_runs_plain(path: Path, runs: list[int]) -> None:
    module = torchrlopt.load(path)
    module(X)
    runs.clear()
    x = X.clone().requires_grad_()
    module(x).sum().backward()
    assert x.grad is not None
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert_close(compiled(X), module(X), rtol=1e-5, atol=1e-6)
    assert len(runs) == 1


@pytest.mark.parametrize("numerics", ["real", "strict"])
def test_the_kernels_are_those_of_the_live_model(numerics: str, tmp_path: Path) -> None:
    fast = torchrlopt.optimise(build(Convolutions), X, **QUICK, numerics=numerics)
    torchrlopt.save(fast, tmp_path / "fast.pt2")
    module = torchrlopt.load(tmp_path / "fast.pt2")
    module(X)
    assert torch.equal(module(X), fast(X))


@pytest.mark.hides_errors
@pytest.mark.parametrize("fault", ["wrong", "fails", "cannot be built"])
def test_a_fault_leaves_the_plain_program(
    fault: str, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = EagerCallable.__call__

    def faulty(self: EagerCallable, *args: Any) -> Any:
        if fault == "fails":
            raise RuntimeError("a fault")
        return tuple(each + 1 for each in plain(self, *args))

    if fault == "cannot be built":
        monkeypatch.setattr(loaded, "assemble", None)
    monkeypatch.setattr(EagerCallable, "__call__", faulty)
    module, expected = torchrlopt.load(path), torchrlopt.load(path, kernels=False)(X)
    for _ in range(3):
        assert torch.equal(module(X), expected)
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1


def test_gradients_with_respect_to_the_state_are_recorded(path: Path) -> None:
    module = torchrlopt.load(path)
    module(X)
    state = {name: each.clone().requires_grad_() for name, each in module.named_buffers()}
    torch.func.functional_call(module, state, (X,)).sum().backward()
    assert all(each.grad is not None for each in state.values() if each.ndim)  # a scalar is not read
    for each in module.buffers():
        each.requires_grad_()
    assert module(X).requires_grad
    with torch.no_grad():
        assert not module(X).requires_grad


def test_autocast_runs_plain(path: Path, runs: list[int]) -> None:
    module, plain = torchrlopt.load(path), torchrlopt.load(path, kernels=False)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            got, expected = module(X), plain(X)
        assert torch.equal(got, expected)
        assert got.dtype == torch.bfloat16
        module(X)
    module(X)
    assert len(runs) == 3, "calls outside run with kernels"


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = Branches()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.branches(x) + y)


def test_sizes_that_vary(tmp_path: Path, runs: list[int]) -> None:
    x, y = torch.randn(5, 16), torch.randn(5, 40)
    fast = torchrlopt.optimise(build(Sums), (x, y), **QUICK)
    rows = {0: torch.export.Dim("rows", min=2, max=100)}
    torchrlopt.save(fast, tmp_path / "fast.pt2", dynamic_shapes=(rows, rows))
    module: Any = torchrlopt.load(tmp_path / "fast.pt2")
    plain = torchrlopt.load(tmp_path / "fast.pt2", kernels=False)
    module(x, y)
    runs.clear()
    for number in (4, 8, 20):
        given = torch.randn(number, 16), torch.randn(number, 40)
        assert_close(module(*given), plain(*given), rtol=1e-5, atol=1e-5)
    assert len(runs) == 3
    for wrong in ((6, 16, 7, 40), (6, 15, 6, 40), (101, 16, 101, 40)):
        with pytest.raises(RuntimeError):
            module(torch.randn(wrong[:2]), torch.randn(wrong[2:]))
    assert len(runs) == 3
