"""Graphs of which a runtime takes parts: right, as fast as it can be, and told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.e2e.models import RUNTIMES
from torchrlopt.compile.memory import MEMORY
from torchrlopt.executors.regions.stitch import RegionCall
from torchrlopt.report import Report

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

WIDTH = 32


@torch.library.custom_op("torchrlopt_tests::wave", mutates_args=())
def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + x


@wave.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("torchrlopt_tests::wave_to_double", mutates_args=())
def wave_to_double(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x.double())


@wave_to_double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.float64)


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
    given = {"cache": False, "on_error": "raise", "measure": False, "searcher": "greedy"} | options
    return torchrlopt.optimise(model, inputs, **given)


def check(fast: Any, model: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-5, check_stride=True)


def ran(report: Report) -> list[str]:
    return [part.executor for part in report.parts]


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (["start"], ["eager", "own"]),
        (["middle"], ["own", "eager", "own"]),
        (["end"], ["own", "eager"]),
        (["middle", "later"], ["own", "eager", "own", "eager", "own"]),
    ],
)
def test_the_users_operator_runs_between_regions(
    runtime: str, places: list[str], expected: list[str]
) -> None:
    model, x = build(Waves, *places), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    assert ran(fast.report) == [runtime if each == "own" else each for each in expected]
    assert "wave" in next(part.reason for part in fast.report.parts if part.executor == "eager")
    check(fast, model, x)
    check(fast, model, torch.randn(4, WIDTH))


def test_the_report_tells_the_parts(runtime: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    report = optimised(model, x, executor=runtime).report
    assert "operators that ONNX does not have" in str(report)
    assert Report.from_json(report.to_json()).parts == report.parts
    assert Report.merged([report, report]).parts == report.parts * 2


@pytest.mark.parametrize("executor", ["eager", "inductor"])
def test_pytorch_itself_takes_the_users_operator(executor: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=executor)
    assert not fast.report.parts
    check(fast, model, x)


def test_batches_of_all_sizes_in_one_graph(runtime: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    torch._dynamo.mark_dynamic(x, 0)
    fast = optimised(model, x, executor=runtime)
    assert ran(fast.report) == [runtime, "eager", runtime]
    for batch in (2, 4, 7, 19):
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
    if weights == "check":
        assert fast.report.weight_sets == 3


def test_sessions_stay_open_from_call_to_call(runtime: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    for _ in range(4):
        fast(x)
    assert fast.report.weight_sets == 1


def test_two_threads_at_once(runtime: str) -> None:
    model = build(Waves, "middle")
    inputs = [torch.randn(4, WIDTH) for _ in range(2)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    fast = optimised(model, inputs[0], executor=runtime)

    def run(which: int) -> list[torch.Tensor]:
        with torch.no_grad():
            return [fast(inputs[which]) for _ in range(20)]

    with ThreadPoolExecutor(2) as threads:
        for which, found in enumerate(threads.map(run, (0, 1))):
            for each in found:
                torch.testing.assert_close(each, expected[which], rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_those_of_the_original(runtime: str, number: float) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    x[1, 3] = number
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), equal_nan=True)
    check(fast, model, torch.randn(4, WIDTH))


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


class Tied(Waves):
    """Both sides of the operator read one weight, of which something is computed first."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.towers[0][0].linear.weight * torch.exp(self.scale)
        y = wave(self.towers[0](x) @ both)
        return self.towers[1](y @ both)


def test_what_both_sides_compute_of_a_weight_is_computed_once(runtime: str) -> None:
    model, x = build(Tied), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime, searcher="none")
    assert ran(fast.report) == [runtime, "eager", runtime]
    check(fast, model, x)
    (compiled,) = MEMORY.compiled.values()
    calls = [node.target for node in compiled.lowered._rest.main.graph.nodes if _is_region(node)]
    names = [{str(value.name) for value in call.region.inputs} for call in calls]
    assert names[0] & names[1]  # the product, which neither of them computes
    for change in (model.scale, model.towers[0][0].linear.weight):
        with torch.no_grad():
            change.add_(0.01)
        check(fast, model, x)


def _is_region(node: torch.fx.Node) -> bool:
    return isinstance(node.target, RegionCall)


def test_the_page_tells_the_parts(runtime: str, tmp_path: Path) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    report = optimised(model, x, executor=runtime).report
    report.save(tmp_path / "report.html")
    assert str(report.parts[0]) in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_auto_runs_parts_too(runtime: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor="auto", measure=True, measure_ms=20.0, min_gain=-10.0)
    tried = {choice.executor for choice in fast.report.choices if choice.ratio is not None}
    assert runtime in tried
    check(fast, model, x)
