"""`weights="frozen"` promises that the model's own weights never change, and says nothing about others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt

OPTIONS: dict[str, Any] = {"weights": "frozen", "measure": False, "cache": False, "on_error": "raise"}
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(8, 8).eval()


def same(fast: Callable[..., Any], model: nn.Module, *args: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(*args), model(*args), rtol=1e-4, atol=1e-5)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = linear(0)
        self.eval()


class WithAdapter(Own):
    """Two products of one input: their weights are concatenated ahead of the calls."""

    def forward(self, x: torch.Tensor, adapter: nn.Module) -> torch.Tensor:
        return self.own(x) + adapter(x)  # type: ignore[no-any-return]


class OnlyAdapter(Own):
    def forward(self, x: torch.Tensor, adapter: nn.Module) -> torch.Tensor:
        return adapter(x) * 2  # type: ignore[no-any-return]


class Scaled(Own):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.own(x) * scale  # type: ignore[no-any-return]


KNOWN = linear(9)
ARGUMENTS: dict[str, tuple[type[Own], Callable[[Own], list[Any]]]] = {
    "modules": (WithAdapter, lambda model: [linear(1), linear(1), linear(2), linear(3)]),
    "modules of the model as well": (
        WithAdapter,
        lambda model: [model.own, model.own, KNOWN, model.own, KNOWN],
    ),
    "nothing else": (OnlyAdapter, lambda model: [model.own, model.own, model.own, KNOWN, model.own]),
    "parameters": (
        Scaled,
        lambda model: [*map(nn.Parameter, torch.eye(3, 8))],
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_may_be_another_each_time(name: str) -> None:
    kind, arguments = ARGUMENTS[name]
    model = kind()
    fast = torchrlopt.optimise(model, **OPTIONS)
    for argument in arguments(model):
        same(fast, model, X, argument)
    if name == "modules":
        assert {report.kept for report in fast.reports} == {"rewritten"}
        assert any("weights='frozen'" in note for note in fast.report.notes)


def test_a_module_that_is_an_argument_may_change() -> None:
    class Holder(nn.Module):
        inner = linear(1)

    class OfHolder(Own):
        def forward(self, x: torch.Tensor, holder: Holder) -> torch.Tensor:
            return self.own(x) + holder.inner(x)  # type: ignore[no-any-return]

    model, holder = OfHolder(), Holder()
    fast = torchrlopt.optimise(model, **OPTIONS)
    for seed in (1, 2, 3):
        holder.inner = linear(seed)
        for factor in (1.0, -2.0):
            with torch.no_grad():
                holder.inner.weight.mul_(factor)
            same(fast, model, X, holder)


def test_a_module_in_a_global_or_a_closure_is_not_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    enclosed = linear(2)

    class OfOthers(Own):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.own(x) + IN_A_GLOBAL(x) + enclosed(x)  # type: ignore[no-any-return]

    model = OfOthers()
    fast = torchrlopt.optimise(model, **OPTIONS)
    same(fast, model, X)
    monkeypatch.setitem(globals(), "IN_A_GLOBAL", linear(5))
    same(fast, model, X)
    enclosed = linear(6)
    same(fast, model, X)
    with torch.no_grad():
        enclosed.weight.mul_(3)
        IN_A_GLOBAL.weight.mul_(3)
    same(fast, model, X)


IN_A_GLOBAL = linear(1)


class Pair(nn.Module):
    """Two products whose weights are concatenated ahead of the calls."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.a, self.b = linear(seed), linear(seed + 100)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x).relu() + self.b(x).relu()  # type: ignore[no-any-return]


class Cut(nn.Module):
    """Blocks that run the same compiled code, as Dynamo cuts the call inside each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Pair(seed) for seed in range(3))
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = _cut_off(block, x)
        return x


def _cut_off(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return block(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("door", ["optimise", "torch.compile"])
def test_blocks_that_share_code_keep_their_own_weights(door: str) -> None:
    model = Cut()
    fast = (
        torchrlopt.optimise(model, **OPTIONS)
        if door == "optimise"
        else torch.compile(model, backend="rlopt", options=OPTIONS)
    )
    for _ in range(3):
        same(fast, model, X)


def test_models_that_are_compiled_one_by_one_keep_their_own_weights() -> None:
    for seed in range(3):
        model = Pair(seed)
        same(torch.compile(model, backend="rlopt", options=OPTIONS), model, X)


def test_other_sizes_keep_the_promise_apart_as_well() -> None:
    model = WithAdapter()
    fast = torchrlopt.optimise(model, **OPTIONS)
    for rows in (4, 5, 6, 7):
        for adapter in (linear(rows), KNOWN):
            same(fast, model, torch.randn(rows, 8), adapter)


@dataclasses.dataclass
class Box:
    """An object of the user's, which is no module."""

    tag: int


class Tagged(Own):
    def __init__(self) -> None:
        super().__init__()
        self.box = Box(0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return self.own(x), self.box.tag


def test_an_object_of_the_model_may_change() -> None:
    model = Tagged().eval()
    fast: Any = torchrlopt.optimise(model, **OPTIONS)
    with torch.no_grad():
        for tag in (1, 1, 1, 2, 2, 3):
            model.box.tag = tag
            assert fast(X)[1] == tag
        model.box = Box(4)
        assert fast(X)[1] == 4
