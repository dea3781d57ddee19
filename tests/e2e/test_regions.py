"""Graphs of which a runtime runs parts: correct in every call, and reported."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.crosses import nightly_but
from tests.e2e.models import RUNTIMES
from tests.e2e.parts import WIDTH, Waves, build, check, optimised, ran, wave
from torchrlopt.compile.memory import MEMORY
from torchrlopt.executors.regions.cut import Region
from torchrlopt.report import Report

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture(params=nightly_but(RUNTIMES[:1], RUNTIMES))
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


PLACES = {
    ("start",): ["eager", "own"],
    ("middle",): ["own", "eager", "own"],
    ("end",): ["own", "eager"],
    ("middle", "later"): ["own", "eager", "own", "eager", "own"],
}


@pytest.mark.parametrize(
    ("runtime", "places"),
    nightly_but(
        [*((name, ("middle", "later")) for name in RUNTIMES), *((name, ("start",)) for name in RUNTIMES[:1]),
         *((name, ("end",)) for name in RUNTIMES[1:])],
        itertools.product(RUNTIMES, PLACES),
    ),
)  # fmt: skip
def test_the_users_operator_runs_between_regions(runtime: str, places: tuple[str, ...]) -> None:
    model, x = build(Waves, *places), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    assert ran(fast.report) == [runtime if each == "own" else each for each in PLACES[places]]
    assert "wave" in next(part.reason for part in fast.report.parts if part.executor == "eager")
    check(fast, model, x)
    check(fast, model, torch.randn(4, WIDTH))


def test_report_and_page_tell_the_parts(runtime: str, tmp_path: Path) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    report = optimised(model, x, executor=runtime).report
    assert "operators that ONNX does not have" in str(report)
    assert Report.from_json(report.to_json()).parts == report.parts
    assert Report.merged([report, report]).parts == report.parts * 2
    report.save(tmp_path / "report.html")
    assert str(report.parts[0]) in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.nightly
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


def test_numbers_that_are_none_are_those_of_the_original(runtime: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor=runtime)
    for number in (float("nan"), float("inf"), float("-inf")):
        x[1, 3] = number
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), equal_nan=True)
        check(fast, model, torch.randn(4, WIDTH))
    assert fast.report.weight_sets == 1, "sessions stay open from call to call"


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
    names = [{value.name for value in call.inputs} for call in calls]
    assert names[0] & names[1]  # the product, which neither of them computes
    for change in (model.scale, model.towers[0][0].linear.weight):
        with torch.no_grad():
            change.add_(0.01)
        check(fast, model, x)


def _is_region(node: torch.fx.Node) -> bool:
    return isinstance(node.target, Region)


@pytest.mark.nightly
def test_auto_runs_parts_too(runtime: str) -> None:
    model, x = build(Waves, "middle"), torch.randn(4, WIDTH)
    fast = optimised(model, x, executor="auto", measure=True, measure_ms=20.0, min_gain=-10.0)
    tried = {choice.executor for choice in fast.report.choices if choice.ratio is not None}
    assert runtime in tried
    check(fast, model, x)
