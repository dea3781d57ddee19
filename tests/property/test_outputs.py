"""Outputs belong to the caller as in eager PyTorch, whatever is written to, kept or called again.

The model and the compiled one go through the same actions. After each action all results so far, the inputs
and the weights are equal, and share memory with one another in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.crosses import nightly_but
from tests.e2e.models import RUNTIMES
from torchrlopt import optimise
from torchrlopt.compile import backend

OWN: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "computed": lambda m, x, y: torch.cat([m.a(x), m.b(x)], 1),
    "slice": lambda m, x, y: (x * y)[:, 1:],
    "expanded": lambda m, x, y: (x * y).sum(1, keepdim=True).expand(-1, 5),
    "nothing": lambda m, x, y: x[:0] * 2,
    "no_change": lambda m, x, y: x.clone(),
    "ones": lambda m, x, y: torch.ones(3),
    "constant": lambda m, x, y: torch.tensor(2.5),
    "sum_of_weight": lambda m, x, y: m.a.weight.sum(),
    "product_of_weights": lambda m, x, y: m.a.weight @ m.b.weight.T,
    "view_of_such_a_product": lambda m, x, y: (m.b.weight @ m.a.weight.T).view(-1)[1:],
    "copy_of_weight": lambda m, x, y: m.a.weight.t().contiguous(),
    "read_elsewhere": lambda m, x, y: torch.softmax(m.b.weight, 0),
    "reads_it": lambda m, x, y: x @ torch.softmax(m.b.weight, 0),
    "buffer": lambda m, x, y: m.buffer + 1,
    "attribute": lambda m, x, y: m.attribute * 2,
}
"""Results in memory of their own."""

SHARED: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "input": lambda m, x, y: x,
    "view_of_input": lambda m, x, y: x.view(-1),
    "columns_of_input": lambda m, x, y: y.t()[::2],
    "there_and_back": lambda m, x, y: y.view(-1).view(3, 4),
    "twice": lambda m, x, y: (lambda z: (z, z))(x - y),
    "with_views": lambda m, x, y: (lambda z: (z.t(), z, z.view(-1), z[1:]))(x + y),
}
WEIGHTS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "weight": lambda m, x, y: m.a.weight,
    "view_of_weight": lambda m, x, y: m.a.weight.t(),
    "row_of_weight": lambda m, x, y: m.b.weight[1],
    "view_of_buffer": lambda m, x, y: m.buffer.view(2, 2),
    "attribute_itself": lambda m, x, y: m.attribute,
}
"""Whoever writes to these changes a weight."""


class Model(nn.Module):
    """Returns all of some expressions."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("buffer", torch.rand(4))
        self.attribute = torch.rand(4)
        self.names = names

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {name: (OWN | SHARED | WEIGHTS)[name](self, x, y) for name in self.names}


class Side:
    """A model with what it has been given and has returned."""

    def __init__(self, model: Model, call: Callable[..., Any]) -> None:
        self.model, self.call = model, call
        self.first = {name: weight.clone() for name, weight in self.weights().items()}
        self.start()

    def weights(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers()),
                "attribute": self.model.attribute}  # fmt: skip

    def start(self) -> None:
        for name, weight in self.weights().items():
            if not torch.equal(weight, self.first[name]):
                weight.copy_(self.first[name])
        self.inputs = [torch.arange(12.0).reshape(3, 4).sin(), torch.arange(12.0).reshape(3, 4).cos()]
        self.results: list[list[Tensor]] = []

    def tensors(self) -> list[Tensor]:
        return [*self.inputs, *self.weights().values(), *(each for result in self.results for each in result)]

    def do(self, action: str, which: int) -> None:
        if action in ("call", "call_with_one"):
            x, y = self.inputs if action == "call" else self.inputs[:1] * 2
            self.results.append(torch.utils._pytree.tree_leaves(self.call(x, y)))
        elif action == "write" and self.results:
            for each in self.results[which % len(self.results)]:
                if 0 not in each.stride():
                    each.mul_(-0.5)
        elif action == "input":
            self.inputs[which % 2].add_(0.25)
        elif action == "weight":
            list(self.weights().values())[which % 6].mul_(0.5)
        elif action == "drop" and self.results:
            del self.results[which % len(self.results)]


def sharing(tensors: list[Tensor]) -> list[int]:
    """For each tensor the first one in the same memory."""
    places = [each.untyped_storage().data_ptr() if each.numel() else -at for at, each in enumerate(tensors)]
    return [places.index(place) for place in places]


def expect_same(side: Side, other: Side) -> None:
    expected, got = other.tensors(), side.tensors()
    assert sharing(got) == sharing(expected)
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5, check_stride=one.numel() > 0)


ACTIONS = ["call", "call_with_one", "write", "input", "weight", "drop"]
Steps = list[tuple[str, int]]
CASES = [
    (door, executor, weights)
    for executor in ("eager", "inductor", *RUNTIMES)
    for weights in ("check", "live", "frozen")
    for door in ("optimise", "compile")
    if door == "optimise" or weights == "check"
]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    ("door", "executor", "weights"),
    nightly_but(
        [
            ("compile", "eager", "check"),
            *(("optimise", "eager", weights) for weights in ("check", "live", "frozen")),
            *(("compile", name, "check") for name in RUNTIMES[:1]),
        ],
        CASES,
    ),
)
def test_outputs_are_the_callers(door: str, executor: str, weights: str) -> None:
    # Inductor compiles for seconds after each change of a weight.
    changes_weights = weights == "live" or (weights == "check" and executor != "inductor")
    groups: Mapping[str, Any] = OWN | SHARED | WEIGHTS if changes_weights else OWN | SHARED
    torch.manual_seed(0)
    model = Model(tuple(groups)).eval()
    options: dict[str, Any] = {"executor": executor, "weights": weights, "measure": False, "cache": False,
                               "on_error": "raise"}  # fmt: skip
    with torch.no_grad():
        eager, own = Side(model, model), copy.deepcopy(model)
        fast = optimise(own, **options) if door == "optimise" else torch.compile(
            own, backend="rlopt", options=options
        )  # fmt: skip
        ours = Side(own, fast)
        actions = [action for action in ACTIONS if action != "weight" or changes_weights]
        step = st.tuples(st.sampled_from(actions), st.integers(0, 11))

        @settings(max_examples=min(settings().max_examples, 8), suppress_health_check=[HealthCheck.too_slow])
        @given(st.lists(step, min_size=2, max_size=9))
        def follow(steps: Steps) -> None:
            eager.start()
            ours.start()
            for action, which in [("call", 0), *steps, ("call", 0)]:
                eager.do(action, which)
                ours.do(action, which)
                expect_same(ours, eager)

        # The first calls compile and the next one is learned from; then one way with all of it.
        for _ in range(3):
            ours.do("call", 0)
        follow.hypothesis.inner_test(
            [("call", 0), ("write", 0), ("call", 0), ("write", -1), ("call_with_one", 0), ("input", 0)]
        )
        follow()
    kept = {report.kept for report in (fast.reports if door == "optimise" else backend.reports())}
    assert kept == {"rewritten"}
