"""Values that a model returns unchanged, and attributes that it sets: every call has its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchrlopt

CALLS = 6
LEAVES = {
    "int": (3, 4), "float": (2.5, 1.5), "str": ("a", "b"), "none": (None, 1), "bool": (True, False),
    "tuple": ((1, 2), (1, 3)), "list": ([1, 2], [1, 3]), "dtype": (torch.float32, torch.int64),
    "class": (int, str), "complex": (1j, 2j), "bytes": (b"a", b"b"),
}  # fmt: skip


class Base(nn.Module):
    """Two linears of one input, which are merged."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)
        self.box: Any = Box(None)

    def both(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(x), self.b(x)], 1)


@dataclasses.dataclass
class Box:
    """A plain object of the user's."""

    tag: Any


class AsArgument(Base):
    def forward(self, x: Tensor, tag: Any) -> Any:
        return {"y": self.both(x), "tag": tag}


class AsKeyword(Base):
    def forward(self, x: Tensor, *, tag: Any) -> Any:
        return self.both(x), tag


class Nested(Base):
    def forward(self, x: Tensor, tag: Any) -> Any:
        return Box([self.both(x), (tag,)])


class OfAnObject(Base):
    def forward(self, x: Tensor, tag: Any) -> Any:
        return self.both(x), tag.tag


class InADict(Base):
    def forward(self, x: Tensor, tag: Any) -> Any:
        return self.both(x), tag["tag"]


class Positive(Base):
    def forward(self, x: Tensor, tag: Any) -> Any:
        return self.both(x) + (1 if tag > 0 else 2), tag


class OfTheModel(Base):
    def forward(self, x: Tensor) -> Any:
        return self.both(x), self.box.tag


HOW: dict[str, tuple[type[Base], Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "argument": (AsArgument, lambda tag: ((tag,), {})),
    "keyword": (AsKeyword, lambda tag: ((), {"tag": tag})),
    "nested": (Nested, lambda tag: ((tag,), {})),
    "object": (OfAnObject, lambda tag: ((Box(tag),), {})),
    "dict": (InADict, lambda tag: (({"tag": tag},), {})),
}


def optimised(model: nn.Module, weights: str) -> Any:
    return torchrlopt.optimise(
        model,
        cache=False,
        searcher="greedy",
        on_error="raise",
        weights=weights,
        min_gain=-10.0,
        measure=False,
    )


def leaf_of(result: Any) -> Any:
    """What was handed through, out of any of the results above."""
    if isinstance(result, dict):
        return result["tag"]
    if isinstance(result, Box):
        return result.tag[1][0]
    return result[1]


@pytest.mark.parametrize("weights", ["check", "frozen"])
@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("how", HOW)
def test_each_call_gets_its_own(how: str, leaf: str, weights: str) -> None:
    kind, call = HOW[how]
    model, x = kind().eval(), torch.randn(3, 16)
    fast = optimised(model, weights)
    with torch.no_grad():
        for value in (*[LEAVES[leaf][0]] * CALLS, *[LEAVES[leaf][1]] * CALLS, LEAVES[leaf][0]):
            args, kwargs = call(value)
            found = leaf_of(fast(x, *args, **kwargs))
            assert found == value
            assert type(found) is type(value)


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_a_number_that_is_only_compared(weights: str) -> None:
    model, x = Positive().eval(), torch.randn(3, 16)
    fast = optimised(model, weights)
    with torch.no_grad():
        for value in (3, 3, 4, 4, 5, 5, 6, -1, 7, 8):
            y, found = fast(x, value)
            assert found == value
            torch.testing.assert_close(y, model(x, value)[0])


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_an_object_of_the_model(weights: str) -> None:
    model, x = OfTheModel().eval(), torch.randn(3, 16)
    fast = optimised(model, weights)
    with torch.no_grad():
        for value in (*[1] * CALLS, *[2] * CALLS):
            model.box.tag = value
            assert fast(x)[1] == value
        for value in (3, 4):
            model.box = Box(value)
            assert fast(x)[1] == value


class State:
    """Of the caller's."""

    def __init__(self) -> None:
        self.done: Any = False


class SetsArgument(Base):
    def forward(self, x: Tensor, state: State) -> Tensor:
        state.done = True
        return self.both(x)


class SetsOwn(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.box.done = True
        return self.both(x)


class SetsZero(Base):
    def forward(self, x: Tensor, state: State) -> Tensor:
        state.done = 0.0
        return self.both(x)


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_an_attribute_is_set_in_the_object_of_the_call(weights: str) -> None:
    fast, x, known = optimised(SetsArgument().eval(), weights), torch.randn(3, 16), State()
    with torch.no_grad():
        for _ in range(CALLS):
            fast(x, known)
        for _ in range(3):
            other = State()
            fast(x, other)
            assert other.done is True
        known.done = False
        fast(x, known)
    assert known.done is True


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_an_attribute_is_set_in_the_object_that_the_model_has_now(weights: str) -> None:
    model, x = SetsOwn().eval(), torch.randn(3, 16)
    model.box = State()
    fast = optimised(model, weights)
    with torch.no_grad():
        for _ in range(CALLS):
            fast(x)
        for _ in range(3):
            model.box = State()
            fast(x)
            assert model.box.done is True


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_a_negative_zero_is_no_zero(weights: str) -> None:
    fast, x, state = optimised(SetsZero().eval(), weights), torch.randn(3, 16), State()
    with torch.no_grad():
        for _ in range(CALLS):
            fast(x, state)
        state.done = -0.0
        fast(x, state)
    assert str(state.done) == "0.0"
