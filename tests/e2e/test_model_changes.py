"""Every possible change to a model between two calls is detected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.e2e.models import build
from tests.e2e.warm import Rich, Warm, X

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def training_and_back(model: Any) -> None:
    model.train()
    model.eval()


def part_in_training(model: Any) -> None:
    model.norm.train()


def swapped_layers(model: Any) -> None:
    model.rest[0], model.rest[1] = model.rest[1], model.rest[0]


def shared_no_more(model: Any) -> None:
    model.tied.weight = nn.Parameter(-model.tied.weight.detach())


def other_size(model: Any) -> None:
    model.a, model.b = nn.Linear(16, 24), nn.Linear(16, 8)


def deleted_and_set(model: Any) -> None:
    del model.offset
    model.offset = torch.full((32,), 3.0)


def other_class(model: Any) -> None:
    class Negated(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -super().forward(x)

    model.a.__class__ = Negated


def forward_of_its_own(model: Any) -> None:
    plain = model.a.forward
    model.a.forward = lambda x: -plain(x)


def parametrised(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(model.a)


def hook_on_a_weight(model: Any) -> None:
    nn.utils.parametrize.register_parametrization(model.a, "weight", nn.Hardtanh(-0.01, 0.01))


def now_a_view(model: Any) -> None:
    model.rest[1].weight.data = model.rest[1].weight.data.t()


def broadcast(model: Any) -> None:
    model.offset.data = torch.full((1,), 5.0)


def double_and_back(model: Any) -> None:
    model.double()
    model.float()


def assigned(model: Any) -> None:
    model.load_state_dict(build(Rich, 1).state_dict(), assign=True)


def loaded(model: Any) -> None:
    model.load_state_dict(build(Rich, 2).state_dict())


def from_a_vector(model: Any) -> None:
    vector_to_parameters(parameters_to_vector(model.parameters()) * 0.5, model.parameters())


def in_place(model: Any) -> None:
    for parameter in model.parameters():
        parameter.mul_(-0.5)
    model.norm.running_mean.add_(1.0)


def silently(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(-0.5)


def set_attribute(name: str, value: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        *path, last = name.split(".")
        for part in path:
            model = getattr(model, part)
        setattr(model, last, value)

    change.__name__ = name
    return change


def an_item(model: Any) -> None:
    model.numbers[0] = 3


def a_longer_list(model: Any) -> None:
    model.numbers.append(2)


def a_value_of_a_dict(model: Any) -> None:
    model.table["one"] = -1.0


CHANGES = [
    training_and_back, part_in_training, swapped_layers, shared_no_more, other_size, deleted_and_set,
    other_class, forward_of_its_own, parametrised, hook_on_a_weight, now_a_view, broadcast, double_and_back,
    assigned, loaded, from_a_vector, in_place, silently, an_item, a_longer_list, a_value_of_a_dict,
    set_attribute("flag", False), set_attribute("scale", 3.0), set_attribute("gain", 4.0),
    set_attribute("config.shift", 0.25), set_attribute("config.uses_norm", False),
    set_attribute("sizes", (3, 2)), set_attribute("norm.eps", 0.5), set_attribute("a.bias", None),
    set_attribute("absent", nn.Parameter(torch.ones(32))), set_attribute("rest", nn.ModuleList()),
    set_attribute("numbers", []), set_attribute("tied", nn.Identity()),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_changes_of_a_model_are_seen(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    warm = Warm(build(Rich), X)
    with torch.no_grad():
        before = warm.model(X)["y"]
        change(warm.model)
        after = warm.model(X)["y"]
    if change not in (training_and_back, double_and_back, parametrised):
        assert not torch.allclose(before, after, rtol=1e-3, atol=1e-3), "nothing has changed"
    warm.expect_all_right()
