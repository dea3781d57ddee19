"""Graphs of which a runtime runs parts, and PyTorch the operators that the runtime does not support."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.crosses import nightly_but
from tests.e2e.models import QUICK, RUNTIMES
from torchrlopt.report import Report

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture(params=nightly_but(RUNTIMES[:1], RUNTIMES))
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


WIDTH = 32


@torch.library.custom_op("torchrlopt_tests::wave", mutates_args=())
def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + x


@wave.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Layer(nn.Module):
    """Keeps its operand's size, so that a difference in the last digit does not grow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x)) / 8


def tower(depth: int = 10) -> nn.Sequential:
    """Enough work for a region."""
    return nn.Sequential(*(Layer() for _ in range(depth)))


class Waves(nn.Module):
    """Towers with the user's operator before, between or behind them."""

    def __init__(self, *places: str) -> None:
        super().__init__()
        self.places = places
        self.towers = nn.ModuleList(tower() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "start" in self.places:
            x = wave(x)
        y = self.towers[0](x)
        if "middle" in self.places:
            y = wave(y)
        y = self.towers[1](y) + x  # past the operator
        if "later" in self.places:
            y = wave(y)
        y = self.towers[2](y)
        return wave(y) if "end" in self.places else y


def build(kind: type[nn.Module], *given: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(*given).eval()


def optimised(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> Any:
    return torchrlopt.optimise(model, inputs, **(QUICK | options))


def check(fast: Any, model: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-5, check_stride=True)


def ran(report: Report) -> list[str]:
    return [part.executor for part in report.parts]


PLACES = {
    ("middle", "later"): ["own", "eager", "own", "eager", "own"],
    ("start",): ["eager", "own"],
    ("end",): ["own", "eager"],
}


@pytest.mark.parametrize("places", PLACES)
def test_the_users_operator_runs_between_regions(runtime: str, places: tuple[str, ...]) -> None:
    model, x = build(Waves, *places), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    assert ran(fast.report) == [runtime if each == "own" else each for each in PLACES[places]]
    assert "wave" in next(part.reason for part in fast.report.parts if part.executor == "eager")
    check(fast, model, x)
    check(fast, model, torch.randn(4, WIDTH))


def test_batches_of_all_sizes_in_one_graph(runtime: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    torch._dynamo.mark_dynamic(x, 0)
    fast = optimised(model, x, executor=runtime)
    assert ran(fast.report) == [runtime, "eager", runtime]
    for batch in (2, 4, 19):
        check(fast, model, torch.randn(batch, WIDTH))
    assert fast.report.num_graphs == 1


@pytest.mark.parametrize("weights", ["check", "live"])
def test_weights_that_change_are_seen_in_their_region(runtime: str, weights: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime, weights=weights)
    for at in (0, 2):
        check(fast, model, x)
        with torch.no_grad():
            model.towers[at][0].linear.weight.mul_(1.5)
        check(fast, model, x)
        check(fast, model, x)  # a session is opened for weights that come twice
    if weights == "check":
        assert fast.report.weight_sets == 3


def test_results_are_the_callers_own(runtime: str) -> None:
    """A later call writes to none of the tensors of an earlier one."""

    class Two(Waves):
        def forward(self, x: torch.Tensor) -> Any:
            y = wave(self.towers[0](x))
            z = self.towers[1](y)
            return z, z + 1, y

    model, x = build(Two), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    with torch.no_grad():
        first = fast(x)
        kept = [each.clone() for each in first]
        fast(torch.randn(4, WIDTH))
        for each, copy in zip(first, kept, strict=True):
            assert torch.equal(each, copy)
        expected = model(x)
    for each, other in zip(first, expected, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-4, atol=1e-5, check_stride=True)


def test_numbers_that_are_none_are_those_of_the_original(runtime: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    for number in (float("nan"), float("inf"), float("-inf")):
        x[1, 3] = number
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), equal_nan=True)
        check(fast, model, torch.randn(4, WIDTH))
    assert fast.report.weight_sets == 1, "sessions stay open from call to call"


CALLS: list[int] = []


@torch.library.custom_op("torchrlopt_tests::counted", mutates_args=())
def counted(x: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
    CALLS.append(len(x))
    return x + mark


@counted.register_fake
def _(x: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Counted(nn.Module):
    """The user's operator between towers counts its calls, and may give NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(tower() for _ in range(2))

    def forward(self, x: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
        y = counted(self.towers[0](x), mark)
        return torch.relu(self.towers[1](y)) + self.towers[0](x)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_users_operators_run_once_in_a_call(runtime: str) -> None:
    """A runtime loses NaN, so what follows runs in PyTorch: that is no reason to begin anew."""
    model = build(Counted)
    fast = optimised(model, torch.randn(4, WIDTH), torch.zeros(4, WIDTH), executor=runtime)
    assert ran(fast.report) == [runtime, "eager", runtime]
    x, mark = torch.randn(4, WIDTH), torch.zeros(4, WIDTH)
    with torch.no_grad():
        fast(x, mark)
        for value in (0.0, torch.nan, torch.inf, 1.0):
            mark[1] = value
            expected = model(x, mark)
            CALLS.clear()
            found = fast(x, mark)
            assert len(CALLS) == 1
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


class Hashes(nn.Module):
    """Integers that need 64 bits choose rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.tower = nn.Embedding(64, WIDTH), tower(12)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mixed = ids * 6364136223846793005 + 1442695040888963407
        return self.tower(self.table(mixed & 63)), mixed


def test_integers_of_64_bits_are_left_to_pytorch() -> None:
    pytest.importorskip("openvino")
    model, ids = build(Hashes), torch.arange(8) * 2**40 + 7
    fast = optimised(model, ids, executor="openvino")
    assert ran(fast.report) == ["eager", "openvino"]
    assert "32 bits" in fast.report.parts[0].reason
    with torch.no_grad():
        for found, expected in zip(fast(ids), model(ids), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Alternating(nn.Module):
    """The user's operator behind every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(50))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = wave(layer(x))
        return x


def test_a_graph_of_small_parts_stays_whole(runtime: str) -> None:
    model, x = build(Alternating), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime, on_error="fallback")
    assert fast.report.kept == "original"
    assert "operators that ONNX does not have" in str(fast.report.fallback_reason)
    assert "no region saves more" in str(fast.report.fallback_reason)
    check(fast, model, x)


class Chosen(Waves):
    """How many rows there are hangs on what is in them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.towers[0](x)
        (rows,) = torch.nonzero(y[:, 0] > 0, as_tuple=True)
        return self.towers[1](y[rows])


@pytest.mark.parametrize("in_one_graph", [False, True])
def test_rows_that_are_chosen_by_their_content(runtime: str, in_one_graph: bool) -> None:
    model, x = build(Chosen), torch.randn(16, WIDTH)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=in_one_graph):
        fast = optimised(model, x, executor=runtime, on_error="fallback")
        for _ in range(3):
            check(fast, model, torch.randn(16, WIDTH))
        assert (fast.report.num_graphs == 1) is in_one_graph


class Asserting(Waves):
    """Asserts something about its values in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.towers[0](x)
        torch._assert_async((y < 1e3).all(), "too large")
        return self.towers[1](y)


def test_assertions_are_made_between_regions(runtime: str) -> None:
    model, x = build(Asserting), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    assert ran(fast.report)[:2] == [runtime, "eager"]
    check(fast, model, x)
    with pytest.raises(RuntimeError, match="too large"):
        fast(x + 1e4)
    check(fast, model, x)
