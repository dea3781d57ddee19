"""Whatever happens to the weights of any instance, a call computes with the current weights.

A state machine draws changes of weights and calls in any order. All instances go through one compiled
function, or each is a separate optimised module.
With `HYPOTHESIS_PROFILE=thorough` it draws many times more.
"""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.crosses import nightly_but
from tests.e2e.models import RUNTIMES, apply, build
from torchrlopt import optimise
from torchrlopt.compile import backend


class Perceptron(nn.Module):
    """Linears that are merged, two of one shape, and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(6, 8)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.first(x), self.second(x)], 1)
        result: torch.Tensor = self.last(torch.tanh(both))
        return result


class Convolutions(nn.Module):
    """Normalisations to fold, and two convolutions of one shape to merge."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.norm(self.stem(x)))
        return torch.cat([self.first(y), self.second(y)], 1).mean((2, 3))


INPUTS = {
    Perceptron: torch.linspace(-1, 1, 18).reshape(3, 6),
    Convolutions: torch.linspace(-1, 1, 196).sin().reshape(2, 2, 7, 7),
}


instances = Bundle("instances")
vectors = Bundle("vectors")
seeds = st.integers(0, 9)
places = st.integers(0, 99)
shifts = st.sampled_from([-0.6, -0.1, 0.2, 0.7])


def shifted(weight: torch.Tensor, shift: float) -> torch.Tensor:
    """Other values, which stay bounded however often they are shifted; in place."""
    return weight.mul_(0.5).add_(shift)


class Weights(RuleBasedStateMachine):
    """Instances of one class, and what their users do to them.

    Args:
        kind: the class.
        call: the compiled function.
    """

    def __init__(
        self, kind: type[nn.Module], call: Callable[[nn.Module, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self.kind, self.call = kind, call
        self.living: list[nn.Module] = []
        self.shared: list[torch.Tensor] = []
        self.num_silent = 0

    def weight(self, model: nn.Module, place: int) -> torch.Tensor:
        """A parameter, or a buffer with numbers."""
        weights = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
        return weights[place % len(weights)]

    def owner(self, model: nn.Module, place: int) -> tuple[nn.Module, str]:
        """A module with a parameter of its own, and the name of it."""
        owners = [
            (part, name) for part in model.modules() for name, _ in part.named_parameters(recurse=False)
        ]
        return owners[place % len(owners)]

    def grown(self, model: nn.Module) -> nn.Module:
        self.living.append(model)
        return model

    @initialize(target=instances, seed=seeds)
    def the_first(self, seed: int) -> nn.Module:
        return self.grown(build(self.kind, seed))

    @rule(target=instances, seed=seeds)
    def another(self, seed: int) -> nn.Module:
        return self.grown(build(self.kind, seed))

    @rule(target=instances, model=instances)
    def a_copy(self, model: nn.Module) -> nn.Module:
        return self.grown(copy.deepcopy(model))

    @rule(model=consumes(instances))
    def let_go(self, model: nn.Module) -> None:
        self.living = [each for each in self.living if each is not model]
        del model
        gc.collect()

    @rule(num_steps=st.integers(1, 4))
    def without_a_look(self, num_steps: int) -> None:
        self.num_silent = num_steps

    @invariant()
    def every_call_is_right(self) -> None:
        if self.num_silent > 0:
            self.num_silent -= 1
            return
        x = INPUTS[self.kind]
        with torch.no_grad():
            for model in self.living:
                torch.testing.assert_close(self.call(model, x), model(x), rtol=1e-4, atol=1e-5)

    @rule(model=instances, place=places, shift=shifts)
    def in_place(self, model: nn.Module, place: int, shift: float) -> None:
        with torch.no_grad():
            shifted(self.weight(model, place), abs(shift))  # variances stay positive

    @rule(model=instances, place=places, shift=shifts)
    def through_a_view(self, model: nn.Module, place: int, shift: float) -> None:
        part, name = self.owner(model, place)
        shifted(getattr(part, name).detach().view(-1)[:3], shift)

    @rule(model=instances, other=instances, place=places)
    def copied_from(self, model: nn.Module, other: nn.Module, place: int) -> None:
        with torch.no_grad():
            self.weight(model, place).copy_(self.weight(other, place).clone())

    @rule(model=instances, other=instances)
    def loaded(self, model: nn.Module, other: nn.Module) -> None:
        model.load_state_dict(copy.deepcopy(other.state_dict()))

    @rule(model=instances, seed=seeds)
    def assigned(self, model: nn.Module, seed: int) -> None:
        model.load_state_dict(build(self.kind, seed).state_dict(), assign=True)

    @rule(model=instances, place=places, shift=shifts)
    def other_data(self, model: nn.Module, place: int, shift: float) -> None:
        part, name = self.owner(model, place)
        getattr(part, name).data = shifted(getattr(part, name).data.clone(), shift)

    @rule(model=instances, place=places, shift=shifts)
    def another_parameter(self, model: nn.Module, place: int, shift: float) -> None:
        part, name = self.owner(model, place)
        setattr(part, name, nn.Parameter(shifted(getattr(part, name).detach().clone(), shift)))

    @rule(model=instances, place=places, shift=shifts)
    def another_parameter_in_the_same_memory(self, model: nn.Module, place: int, shift: float) -> None:
        part, name = self.owner(model, place)
        old = getattr(part, name)
        # The owner of the old one would not see what becomes of its memory.
        assume(all(old is not each for each in self.shared))
        shifted(old.data, shift)
        setattr(part, name, nn.Parameter(old.data))

    @rule(target=vectors, model=instances)
    def from_a_vector(self, model: nn.Module) -> torch.Tensor:
        vector = parameters_to_vector(model.parameters()).detach()
        vector_to_parameters(vector, model.parameters())
        return vector

    @rule(vector=vectors, shift=shifts)
    def the_vector(self, vector: torch.Tensor, shift: float) -> None:
        shifted(vector, shift)

    @rule(model=instances)
    def converted_and_back(self, model: nn.Module) -> None:
        model.half()
        model.float()

    @rule(model=instances, other=instances)
    def shared_with_another(self, model: nn.Module, other: nn.Module) -> None:
        """One parameter in two instances."""
        self.shared.append(other.get_submodule("first").get_parameter("weight"))
        model.get_submodule("first").weight = self.shared[-1]

    @rule(model=instances, shift=shifts)
    def announced(self, model: nn.Module, shift: float) -> None:
        for parameter in model.parameters():
            shifted(parameter.data, shift)
        torch.autograd.graph.increment_version(model.parameters())


def explore(machine: Callable[[], Weights], share: int) -> None:
    """Run a machine for a share of the examples of the profile."""
    num_examples = max(settings.default.max_examples // share, 1)  # type: ignore[union-attr]
    limits = settings(
        max_examples=num_examples, stateful_step_count=20, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=limits)  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    ("executor", "kind"),
    nightly_but(
        [("eager", Perceptron), ("eager", Convolutions), *((name, Perceptron) for name in RUNTIMES[:1])],
        itertools.product(["eager", *RUNTIMES], [Perceptron, Convolutions]),
    ),
)
def test_a_call_computes_with_the_weights_of_that_moment(executor: str, kind: type[nn.Module]) -> None:
    options = {
        "executor": executor, "on_error": "raise", "measure": False, "cache": False, "searcher": "greedy",
    }  # fmt: skip
    call = torch.compile(apply, backend="rlopt", options=options)
    with torch.no_grad():
        call(build(kind, 0), INPUTS[kind])
    (report,) = backend.reports()
    assert report.kept == "rewritten"
    assert report.steps
    # OpenVINO takes most of a second to compile a model, and does so for every set of weights.
    explore(lambda: Weights(kind, call), share=60 if executor == "openvino" else 20)
    assert len(backend.reports()) == 1, "one compilation has served all"


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("kind", [Perceptron, Convolutions])
def test_optimised_modules_too(kind: type[nn.Module]) -> None:
    options: dict[str, Any] = {
        "on_error": "raise", "measure": False, "cache": False, "searcher": "greedy",
    }  # fmt: skip
    made: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()

    def call(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if model not in made:
            made[model] = optimise(model, x, **options)
            assert made[model].report.kept == "rewritten"
        for _ in range(3):  # also a call with weights that have come before
            result: torch.Tensor = made[model](x)
        return result

    explore(lambda: Weights(kind, call), share=60)
