"""Results of calls, made anew of the outputs of a graph: what is made, and what is not."""

from __future__ import annotations

import collections
import types
from typing import Any

import pytest
import torch

from torchrlopt.api.results import maker

OUT = [torch.zeros(1), torch.ones(1)]
OTHERS = [torch.full((1,), 2.0), torch.full((1,), 3.0)]


class Slotted:
    __slots__ = ("y",)

    def __init__(self, y: Any) -> None:
        self.y = y


class Made:
    def __new__(cls, *_: Any) -> Made:
        return super().__new__(cls)

    def __init__(self, y: Any) -> None:
        self.y = y


class Plain:
    def __init__(self, y: Any) -> None:
        self.y = y


def _same(made: Any, value: Any) -> bool:
    """Whether one is the other, with other outputs in it."""
    if isinstance(value, torch.Tensor):
        return made is OTHERS[next(at for at, each in enumerate(OUT) if each is value)]
    if type(made) is not type(value):
        return False
    if isinstance(value, dict):
        return list(made) == list(value) and all(_same(made[key], value[key]) for key in value)
    if isinstance(value, (list, tuple)):
        return len(made) == len(value) and all(map(_same, made, value))
    return _same(vars(made), vars(value)) if isinstance(value, Plain) else bool(made == value)


@pytest.mark.parametrize(
    "value",
    [
        OUT[1], tuple(OUT), [OUT[1], None, "a"], {"x": OUT[0], 2: (OUT[1], True)}, Plain([OUT[0]]),
        collections.OrderedDict(b=OUT[0], a=OUT[1]), (1, 2.0), (OUT[0], torch.float32, int),
        Plain({"x": OUT[0]}),
    ],
)  # fmt: skip
def test_what_is_made(value: Any) -> None:
    make = maker(value, OUT, (), are_numbers_fixed=True)
    assert make is not None
    assert _same(make(OTHERS), value)


@pytest.mark.parametrize(
    "value",
    [
        [], {}, [1], Plain(1), torch.zeros(1), [torch.zeros(1)], Slotted(OUT[0]), Made(OUT[0]), {OUT[0]},
        types.SimpleNamespace(model=torch.nn.Linear(1, 1)), torch.nn.Module(), (OUT[0], []), lambda: OUT[0],
    ],
)  # fmt: skip
def test_what_may_have_been_there_before(value: Any) -> None:
    assert maker(value, OUT, (), are_numbers_fixed=True) is None


def test_what_holds_an_input_may_have_been_there_before() -> None:
    given = {id(OUT[0])}
    assert maker([OUT[0]], OUT, given, are_numbers_fixed=True) is None
    assert maker([OUT[0], OUT[1]], OUT, given, are_numbers_fixed=True) is not None


def test_numbers_that_may_be_sizes() -> None:
    assert maker((OUT[0], 3), OUT, (), are_numbers_fixed=False) is None
    assert maker((OUT[0], True), OUT, (), are_numbers_fixed=False) is not None


def test_one_object_stays_one_and_circles_are_not_made() -> None:
    shared = [OUT[0]]
    make = maker({"a": shared, "b": shared}, OUT, (), are_numbers_fixed=True)
    assert make is not None
    made, again = make(OTHERS), make(OTHERS)
    assert made["a"] is made["b"]
    assert made["a"] is not again["a"]
    shared.append(shared)
    assert maker(shared, OUT, (), are_numbers_fixed=True) is None
