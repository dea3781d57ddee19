"""Calls with side effects survive capture, the core, writing and lowering, in their order."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.capture.capture_calls import Capture, capture_function
from torchrlopt import _C
from torchrlopt.capture.aten import reason_to_leave_alone
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.writer import write
from torchrlopt.substitutions import load_library

_seen: list[tuple[str, float]] = []
_library = torch.library.Library("rlopt_effect", "DEF")
_library.define("note(Tensor x, str name) -> ()")
_library.impl("note", lambda x, name: _seen.append((name, float(x.sum()))), "CompositeExplicitAutograd")
_library.impl("note", lambda x, name: None, "Meta")
_library.define("count(Tensor x) -> Tensor")
_library.impl("count", lambda x: _seen.append(("count", 0.0)) or x + 1, "CompositeExplicitAutograd")
_library.impl("count", lambda x: torch.empty_like(x), "Meta")
# What torch itself is told, so that it takes no such call for dead.
torch.fx.node.has_side_effect(torch.ops.rlopt_effect.note.default)
torch.fx.node.has_side_effect(torch.ops.rlopt_effect.count.default)


@torch.library.custom_op("rlopt_effect::scale_", mutates_args=("x",))
def _scale_(x: torch.Tensor, by: float) -> None:
    x.mul_(by)


@torch.library.custom_op("rlopt_effect::fill", mutates_args=("out",))
def _fill(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.copy_(3 * x)
    return x + 1


@_fill.register_fake
def _(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _rewritten(record: Capture) -> tuple[Callable[..., Any], list[str]]:
    """The graph after a search, as a callable, and the names of the substitutions that were applied."""
    captured = record.captured
    program = read(captured.model, captured.static_inputs)
    found = _C.search(program.graph, load_library(), _C.CostModel(), budget_steps=1000)
    model = write(dataclasses.replace(program, graph=found["graph"]))
    return lower_captured(model, captured), [name for name, _ in found["steps"]]


def _noted(run: Callable[[], Any]) -> list[tuple[str, float]]:
    _seen.clear()
    run()
    return list(_seen)


def test_an_assertion_is_kept_while_the_graph_around_it_is_rewritten() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "x must be positive")
        return torch.relu(torch.relu((x @ w).transpose(0, 1).transpose(0, 1)))

    x, w = torch.rand(3, 4) + 0.1, torch.randn(4, 4)
    record = capture_function(function, x, w)
    assert record.captured.opaque == ("aten._assert_async.msg",)
    run, steps = _rewritten(record)
    assert steps
    torch.testing.assert_close(run(x, w)[0], function(x, w))
    with pytest.raises(RuntimeError, match="x must be positive"):
        run(-x, w)


def test_effects_keep_their_order_and_see_the_values_that_they_saw() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        late = x.exp().sigmoid()
        torch.ops.rlopt_effect.note(late, "first")
        torch.ops.rlopt_effect.note(x, "second")
        torch.ops.rlopt_effect.count(x)
        y = torch.ops.rlopt_effect.count(x)
        torch.ops.rlopt_effect.note(torch.relu(torch.relu(y)), "last")
        return y * 2 + torch.relu(torch.relu(x))

    x = torch.randn(3)
    wanted = _noted(lambda: function(x))
    run, steps = _rewritten(capture_function(function, x))
    assert steps
    noted = _noted(lambda: torch.testing.assert_close(run(x)[0], function(x)))
    assert [name for name, _ in noted] == 2 * ["first", "second", "count", "count", "last"]
    torch.testing.assert_close([number for _, number in noted[:5]], [number for _, number in wanted])


def test_effects_form_one_chain_that_ends_in_an_output_of_the_model() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.ops.rlopt_effect.note(x, "a")
        torch.ops.rlopt_effect.note(x, "b")
        return x + 1

    model = capture_function(function, torch.randn(3)).captured.model
    first, second = (node for node in model.graph if node.domain)
    assert second.inputs[-1] is first.outputs[-1]
    assert [value.name for value in model.graph.outputs] == ["add", second.outputs[-1].name]


def test_a_graph_with_effects_other_than_assertions_is_left_alone() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ops.rlopt_effect.note(x, "once")
            return torch.relu(torch.relu(x))

    torch._dynamo.reset()
    model = Model().eval()
    optimised = torchrlopt.optimise(model, torch.randn(4), executor="eager", measure=False)
    assert optimised.report.fallback_reason == (
        "the graph calls an operator for its effect (rlopt_effect.note.default)"
    )
    assert [name for name, _ in _noted(lambda: optimised(torch.randn(4)))] == ["once"]


@pytest.mark.parametrize("words", [("the sum must be positive",), ()])
def test_a_model_with_an_assertion_is_rewritten_and_still_asserts(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._assert_async(x.sum() > 0, *words)
            return torch.relu(torch.relu(x))

    torch._dynamo.reset()
    x, model = torch.rand(4) + 1, Model().eval()
    with pytest.raises(RuntimeError) as plain:
        model(-x)
    optimised = torchrlopt.optimise(model, x, executor="eager", measure=False, on_error="raise")
    assert optimised.report.kept == "rewritten"
    torchrlopt.save(optimised, tmp_path / "model.pt2", x)
    for each in (optimised, torchrlopt.load(tmp_path / "model.pt2")):
        torch.testing.assert_close(each(x), x)
        with pytest.raises(RuntimeError, match=re.escape(str(plain.value))):
            each(-x)


def test_an_assertion_on_a_gpu_is_left_alone() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, device="meta")
    graph.output(graph.call_function(torch.ops.aten._assert_async.default, (x,)))
    reason = reason_to_leave_alone(torch.fx.GraphModule({}, graph))
    assert reason == "the graph asserts something on a GPU (aten._assert_async.default)"


def test_operators_may_write_to_inputs_and_to_values_between() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            between = torch.relu(x @ x) + 1
            torch.ops.rlopt_effect.scale_(between, 2.0)
            out = torch.zeros_like(x)
            result = torch.ops.rlopt_effect.fill(between, out)
            torch.ops.rlopt_effect.scale_(x, 3.0)
            return torch.relu(torch.relu(result)) + out * between

    torch._dynamo.reset()
    model, x = Model().eval(), torch.randn(4, 4)
    optimised = torchrlopt.optimise(model, x.clone(), executor="eager", measure=False, on_error="raise")
    assert optimised.report.kept == "rewritten"
    mine, its = x.clone(), x.clone()
    torch.testing.assert_close(optimised(mine), model(its))
    torch.testing.assert_close(mine, its)
    torch.testing.assert_close(mine, 3 * x)


def test_an_effect_that_tracing_drops_is_not_repeated_by_us() -> None:
    """Of an operator without a result AOTAutograd keeps nothing; Dynamo's graph still calls it."""
    noted: list[int] = []

    @torch.library.custom_op("rlopt_effect::log", mutates_args=())
    def log(x: torch.Tensor) -> None:
        noted.append(1)

    @log.register_fake
    def _(x: torch.Tensor) -> None:
        return None

    def function(x: torch.Tensor) -> torch.Tensor:
        log(x)
        return torch.relu(torch.relu(x))

    def calls(backend: str) -> int:
        torch._dynamo.reset()
        noted.clear()
        with torch.no_grad():
            torch.compile(function, backend=backend)(torch.randn(3))
        return len(noted)

    assert calls("eager") == 1
    assert calls("rlopt") <= 1
    assert "for its effect" in str(torchrlopt.reports()[-1].fallback_reason)
