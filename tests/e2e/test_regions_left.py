"""Operators that runtimes do not support run in PyTorch, between the supported parts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.crosses import nightly_but
from tests.e2e.models import RUNTIMES
from tests.e2e.parts import WIDTH, Waves, build, check, optimised, ran, tower, wave, wave_to_double

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture(params=nightly_but(RUNTIMES[-1:], RUNTIMES))
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Digits(nn.Module):
    """A last digit decides between towers."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(tower() for _ in range(2))

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        digits = torch.floor(z / 61)
        return self.towers[1](self.towers[0](x) + digits[: x.shape[0], None]), digits


def test_last_digits_are_left_to_pytorch(runtime: str) -> None:
    model, x = build(Digits), torch.randn(4, WIDTH)
    z = 61.0 * torch.arange(1, 200)
    fast = optimised(model, x, z, executor=runtime)
    assert sorted(ran(fast.report)) == sorted(["eager", runtime])
    assert "last digit" in str(fast.report)
    for factor in (61.0, 49.0, 7.0, 0.1):
        z = factor * torch.arange(1, 200)
        with torch.no_grad():
            assert torch.equal(fast(x, z)[1], model(x, z)[1])
            torch.testing.assert_close(fast(x, z)[0], model(x, z)[0], rtol=1e-4, atol=1e-5)


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


class Counts(nn.Module):
    """Integers of a kind that ONNX Runtime has no operator for, beside a tower."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = tower()

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tower(x), torch.relu(counts)


def test_onnx_runtime_is_asked_what_it_has() -> None:
    pytest.importorskip("onnxruntime")
    model, x, counts = build(Counts), torch.randn(4, WIDTH), torch.arange(-3, 5)
    fast = optimised(model, x, counts, executor="onnxruntime")
    assert sorted(ran(fast.report)) == ["eager", "onnxruntime"]
    assert "Relu: ONNX Runtime has no such operator" in str([part.reason for part in fast.report.parts])
    with torch.no_grad():
        for found, expected in zip(fast(x, counts), model(x, counts), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Doubles(Waves):
    """Numbers of 64 bits cross the border."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = wave_to_double(self.towers[0](x))
        return self.towers[1]((wide * 2).float())


def test_numbers_of_64_bits_cross_in_pytorch(runtime: str) -> None:
    model, x = build(Doubles), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    assert ran(fast.report) == [runtime, "eager", runtime]
    check(fast, model, x)


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
