"""The model of error: sums of squared sensitivities predict the error of graphs that are really rounded."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest
import torch
from torch import nn

from tests.budget.models import block, images, uneven
from torchrlopt.capture.job import jobs_of
from torchrlopt.executors.eager.executor import assemble
from torchrlopt.executors.eager.kernels import int8
from torchrlopt.executors.eager.kernels.indirect import has_int8
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.precision.retyped import CONTRACTIONS, lowerable, owner_of, retyped
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.judge.budget import rms
from torchrlopt.options import LoweringOptions
from torchrlopt.precision.assignment import Assignment
from torchrlopt.precision.sensitivity import Sensitivities, sensitivities
from torchrlopt.precision.state import Times
from torchrlopt.torch_private.modes import without_dispatch_modes

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Lowering:
    """A lowered graph with its inputs, and what is predicted of it."""

    def __init__(self, made: Made) -> None:
        (job,) = jobs_of(*made)
        self.inputs = job.traced.own_inputs()
        with without_dispatch_modes():
            self.module = lower_captured(job.captured.model, job.captured)
        self.static = job.captured.static_inputs
        self.calls = lowerable(self.module.graph, self.static)
        self.found: Sensitivities = sensitivities(
            self.module, self.inputs, self.static, self.calls, num_directions=4, seed=0
        )

    def error(self, lowered: Collection[str]) -> float:
        """Measure the error of the graph with these calls in bfloat16."""
        with without_dispatch_modes(), torch.no_grad():
            module = retyped(self.module, lowered)
            return rms(module(*self.inputs), self.module(*self.inputs))

    def assignment(self) -> Assignment:
        """All calls take twice as long in float32."""
        names = [each.name for each in self.calls]
        return Assignment(
            self.calls, self.found, Times(dict.fromkeys(names, 20.0), dict.fromkeys(names, 10.0))
        )


@pytest.mark.parametrize("make", [block, images, uneven])
def test_the_error_of_random_choices_is_predicted(make: Callable[[], Made]) -> None:
    this = Lowering(make())
    drawn = random.Random(1)
    contractions = [each.name for each in this.calls if each.target in CONTRACTIONS]
    for share in (0.3, 0.6, 1.0):
        lowered = {name for name in contractions if drawn.random() < share} or set(contractions[:1])
        predicted = _predicted(this, lowered)
        assert this.error(lowered) == pytest.approx(predicted, rel=0.35), (share, lowered)


def _predicted(this: Lowering, lowered: Collection[str]) -> float:
    total = 0.0
    for call in this.calls:
        if call.name not in lowered:
            continue
        total += this.found.results.get(call.name, 0.0) + this.found.weights.get(call.name, 0.0)
        for operand in call.all_input_nodes:
            if owner_of(operand).name not in lowered:
                total += this.found.edges.get((operand.name, call.name), 0.0)
    return total**0.5


@pytest.mark.parametrize("make", [block, images, uneven])
@pytest.mark.parametrize("budget", [1e-4, 1e-3, 3e-3, 1e-1])
def test_a_choice_keeps_its_budget(make: Callable[[], Made], budget: float) -> None:
    this = Lowering(make())
    choice = this.assignment().within(budget)
    assert choice.error <= budget
    assert this.error(choice.lowered) <= 1.3 * budget
    assert choice.us <= this.assignment().of_none().us
    if budget == 1e-1:
        assert len(choice.lowered) == len(this.calls), "there is room for everything"


def test_what_hardly_counts_is_lowered_first() -> None:
    this = Lowering(uneven())
    products = [each for each in this.calls if each.target in CONTRACTIONS]
    assert len(products) == 2
    by_error = sorted(products, key=lambda each: this.found.weights[each.name])
    assert this.found.weights[by_error[0].name] < 1e-4 * this.found.weights[by_error[1].name]
    lowered = this.assignment().within(1e-4).lowered
    assert by_error[0].name in lowered
    assert by_error[1].name not in lowered


def test_more_error_never_takes_more_time() -> None:
    assignment = Lowering(block()).assignment()
    times = [assignment.within(budget).us for budget in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)]
    assert times == sorted(times, reverse=True)


@pytest.mark.skipif(not has_int8(torch.float32), reason="the processor does not multiply 8-bit integers")
@pytest.mark.parametrize("make", [block, images])
@pytest.mark.parametrize("is_low", [False, True])
def test_the_error_of_integers_is_predicted(make: Callable[[int], Made], is_low: bool) -> None:
    this = Lowering(make(128))  # smaller products are left to bfloat16
    fixed = static_nodes(this.module.graph, this.static)
    calls = [each for each in this.calls if int8.supports(each, fixed)]
    found = sensitivities(this.module, this.inputs, this.static, this.calls, 4, 0, calls)
    quantised = {each.name for each in calls}
    assert quantised
    lowered = {each.name for each in this.calls} if is_low else set()
    with without_dispatch_modes():
        module = retyped(this.module, lowered, quantised)
        run = assemble(module, this.static, LoweringOptions())
    with torch.no_grad():
        error = rms(run(*this.inputs), this.module(*this.inputs))
    squares = sum(found.quantised[name] for name in quantised)
    squares += _predicted(this, lowered) ** 2 if is_low else 0.0
    assert 0.5 < error / squares**0.5 < 1.35, "fused kernels round less often"
