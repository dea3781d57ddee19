"""Arguments and results of calls: containers, varying sizes, objects, models of transformers."""

from __future__ import annotations

import collections
import dataclasses
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.e2e.models import QUICK, build
from tests.e2e.warm import Warm, expect_equal
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def x(rows: int = 5) -> torch.Tensor:
    return torch.randn(rows, 16)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

    def both(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.a(x), self.b(x)], 1)


class Contained(Base):
    def forward(self, given: Any, scale: Any = None) -> Any:
        first, second = given.values() if isinstance(given, dict) else given
        y = self.both(first) + second
        y = y if len(given) == 2 else -y
        return y if scale is None else y * scale["by"][0]


@pytest.mark.parametrize("weights", ["check", "frozen"])
@pytest.mark.parametrize("kind", [tuple, list, lambda pair: dict(zip("xy", pair, strict=True))])
def test_tensors_in_containers(weights: str, kind: Any) -> None:
    warm = Warm(build(Contained), kind((x(), x())), weights=weights)
    for _ in range(3):
        warm.args = (kind((x(), x())),)
        warm.expect_right()
    one = x()
    warm.args = (kind((one, one)),)
    warm.expect_right()
    warm.args, warm.kwargs = (kind((x(), x())),), {"scale": {"by": [x(), 1]}}
    warm.expect_all_right()


class Sizes(Base):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.both(x)
        return {"y": y if x.shape[0] < 7 else -y, "rows": x.shape[0]} if x.shape[1] else y


class OfSize(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.both(x)
        return y if x.shape[0] < 7 else -y


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_sizes_that_vary(weights: str) -> None:
    warm = Warm(build(OfSize), x(3), weights=weights)
    for rows in (4, 5, 9, 8, 1, 3):
        warm.args = (x(rows),)
        warm.expect_all_right()
    for rows in (6, 7, 2, 11, 5, 4, 3, 1):
        warm.args = (x(rows),)
        warm.expect_right()
    with torch.no_grad():
        warm.model.a = nn.Linear(16, 8)
    if weights == "check":
        warm.expect_right()


def test_numbers_that_vary_with_a_size_are_not_taken_for_constants() -> None:
    model = build(Sizes)
    fast: Any = optimise(model, **QUICK)
    with torch.no_grad():
        for rows in (3, 4, 5, 4, 5, 6, 5, 6, 9, 8):
            given = x(rows)
            expect_equal(fast(given), model(given))


@dataclasses.dataclass
class Result:
    y: torch.Tensor
    parts: Any = None
    number: int = 3


class Ordered(collections.OrderedDict[str, Any]):
    pass


class Objects(Base):
    def forward(self, x: torch.Tensor) -> Any:
        y = self.both(x)
        parts = [y.relu(), None]
        ordered = Ordered(y=y)
        ordered["parts"] = parts
        return Result(y, parts), ordered, parts


def test_objects_are_made_anew() -> None:
    warm_model = build(Objects)
    fast: Any = optimise(warm_model, **QUICK)
    given = x()
    with torch.no_grad():
        expected, _, _ = warm_model(given)
        found = [fast(given) for _ in range(6)]
    for result, ordered, parts in found:
        assert type(result) is Result
        assert type(ordered) is Ordered
        assert result.number == 3
        assert result.parts is parts
        assert ordered["parts"] is parts
        expect_equal([result.y, parts[0]], [expected.y, expected.parts[0]])
    assert len({id(result) for result, _, _ in found}) == len(found)
    living = [weakref.ref(result.y) for result, _, _ in found[1:]]
    del result, ordered, parts, found
    gc.collect()
    assert not any(each() is not None for each in living)


class Setting(Base):
    def __init__(self) -> None:
        super().__init__()
        self.state = State()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.is_running = True
        y = self.both(x)
        self.state.is_running = False
        self.state.has_run = True
        return y


class State:
    def __init__(self) -> None:
        self.is_running = self.has_run = False


def test_attributes_that_a_call_leaves_as_they_were() -> None:
    warm = Warm(build(Setting), x())
    for name in ("has_run", "is_running"):
        setattr(warm.model.state, name, name != "has_run")
        warm.fast(*warm.args)
        assert warm.model.state.has_run
        assert not warm.model.state.is_running
        warm.expect_all_right()


@pytest.mark.parametrize("weights", ["check", "frozen"])
def test_models_of_transformers(weights: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"vocab_size": 99, "bos_token_id": None, "eos_token_id": None}
    bert = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=99
    )
    gpt = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, **sizes)
    torch.manual_seed(0)
    for model, kwargs in (
        (transformers.BertModel(bert), {"attention_mask": torch.ones(2, 7, dtype=torch.int64)}),
        (transformers.GPT2LMHeadModel(gpt), {"use_cache": True}),
    ):
        fast: Any = optimise(model.eval(), **{**QUICK, "weights": weights})
        ids = torch.randint(99, (2, 7))
        with torch.no_grad():
            for _ in range(12):
                got = fast(input_ids=ids, **kwargs)
            expected = model(input_ids=ids, **kwargs)
            assert type(got) is type(expected)
        assert list(got) == list(expected)
        expect_equal(got[0], expected[0])
        if "use_cache" in kwargs:
            assert type(got.past_key_values) is type(expected.past_key_values)
            assert got.past_key_values.get_seq_length() == 7
            expect_equal(got.past_key_values.layers[0].keys, expected.past_key_values.layers[0].keys)
