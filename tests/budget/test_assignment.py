"""The search for the fastest choice: against an integer programme, and its speed."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import fx

from baselines.shared.integer_programme import optimal_us
from torchrlopt.precision.assignment import Assignment
from torchrlopt.precision.sensitivity import Sensitivities
from torchrlopt.precision.state import State, Times

aten = torch.ops.aten


def drawn(num_calls: int, seed: int) -> Assignment:
    """A graph of products, sums and activations that read any of the last values, with random costs."""
    draw = random.Random(seed)
    graph = fx.Graph()
    values = [graph.placeholder("x")]
    weight = graph.placeholder("w")
    calls = []
    for _ in range(num_calls):
        near = values[-6:]
        kind = draw.choice([aten.mm.default, aten.relu.default, aten.add.Tensor])
        operands = [draw.choice(near), weight if kind is aten.mm.default else draw.choice(near)]
        calls.append(graph.call_function(kind, tuple(operands[: 1 if kind is aten.relu.default else 2])))
        values.append(calls[-1])
    graph.output((calls[-1],))
    for node in (*values, weight):
        node.meta["val"] = torch.empty(64, 64, device="meta")
    errors = {node.name: math.exp(draw.gauss(-16, 2)) for node in values}
    edges = {
        (operand.name, call.name): math.exp(draw.gauss(-17, 2))
        for call in calls
        for operand in call.all_input_nodes
        if operand is not weight
    }
    high = {call.name: math.exp(draw.gauss(2, 1)) for call in calls}
    low = {name: us * draw.uniform(0.4, 1.1) for name, us in high.items()}
    return Assignment(calls, Sensitivities(errors, edges, errors), Times(high, low))


@pytest.mark.parametrize("seed", range(6))
def test_choices_are_as_fast_as_those_of_an_integer_programme(seed: int) -> None:
    assignment = drawn(40, seed)
    whole = assignment.of_all().error
    for share in (0.1, 0.3, 0.7):
        choice = assignment.within(share * whole)
        least = optimal_us(assignment, share * whole)
        assert choice.error <= share * whole
        assert least * (1 - 2e-3) <= choice.us <= 1.03 * least, "the programme is exact to a thousandth"


def test_sums_kept_up_to_date_are_those_of_the_whole() -> None:
    assignment = drawn(60, 0)
    draw = random.Random(1)
    state = State(assignment.values, assignment.items, assignment.items)
    for _ in range(50):
        state.flip(draw.sample(assignment.items, draw.choice([1, 7])))
        anew = State(assignment.values, assignment.items, list(state.low))
        assert (state.us, state.error) == pytest.approx((anew.us, anew.error), rel=1e-9)
