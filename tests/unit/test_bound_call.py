"""Calls with prepared operands: what they pass on, what they look at, and that they end."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from torchrlopt import _C
from torchrlopt.api.watch import watched
from torchrlopt.executors.weights.prologue_cache import PrologueCache


def _all(*args: Any) -> tuple[Any, ...]:
    return args


class _Method:
    def run(self, *args: Any) -> tuple[Any, ...]:
        return (self, *args)


def test_operands_come_in_order() -> None:
    a, b, result = object(), object(), object()
    template = _C.Template([None, a, None, b])
    call = _C.BoundCall(_all, template, [3, 2, 1, 0, 2], (result,))
    assert call((1, 2)) == (b, 2, a, 1, 2, result)
    with pytest.raises(IndexError):
        call((1,))
    with pytest.raises(IndexError):
        _C.BoundCall(_all, template, [4], ())
    owner = _Method()
    assert _C.BoundCall(owner.run, template, [0], ())((1, 2)) == (owner, 1)


def test_no_reference_is_lost_or_kept() -> None:
    a, value = object(), object()
    call = _C.BoundCall(_all, _C.Template([None, a]), [0, 1], (a,))
    before = sys.getrefcount(a), sys.getrefcount(value)
    for _ in range(100):
        call((value,))
    assert (sys.getrefcount(a), sys.getrefcount(value)) == before


def test_errors_of_the_function_are_raised() -> None:
    def fail(*_: Any) -> None:
        raise KeyError("as it is")

    with pytest.raises(KeyError, match="as it is"):
        _C.BoundCall(fail, _C.Template([None]), [0], ())((1,))


def test_the_end_lets_go_of_results() -> None:
    result = torch.zeros(2)
    living = weakref.ref(result)
    call = _C.BoundCall(_all, _C.Template([None]), [0], (result,))
    del result
    assert call((1,))[1] is living()
    call.end()
    assert living() is None
    assert call((1,)) is None


def test_a_call_that_ends_itself_returns() -> None:
    def ending(*args: Any) -> tuple[Any, ...]:
        call.end()
        gc.collect()
        return args

    result = torch.ones(2)
    call = _C.BoundCall(ending, _C.Template([None]), [0], (result,))
    assert call((1,)) == (1, result)
    assert call((1,)) is None


def test_nothing_is_called_where_the_model_or_a_weight_has_changed() -> None:
    model = nn.Linear(2, 2)
    cache = PrologueCache(lambda weight: (weight * 2,), "check")
    template = _C.Template([None, model.weight])

    def bound() -> _C.BoundCall:
        found = watched(model, "M")
        assert found is not None
        cache.get([model.weight])
        call = cache.bound(
            [model.weight],
            lambda results, states, words: _C.BoundCall(
                _all, template, [0, 1], results, found.watch, states, words
            ),
        )
        assert call is not None
        return call

    with torch.no_grad():
        for change in (
            lambda: model.weight.add_(1),
            lambda: model.weight.data.mul_(3),
            lambda: setattr(model.weight, "data", torch.ones(2, 2)),
            lambda: setattr(model, "more", 1),
        ):
            call = bound()
            value, weight, twice = call((7,))
            assert (value, weight) == (7, model.weight)
            assert torch.equal(twice, weight * 2)
            del weight, twice
            change()
            assert call((7,)) is None


def test_calls_end_with_the_results_that_they_have() -> None:
    weights = [torch.ones(2)]
    cache = PrologueCache(lambda weight: (weight * 2,), "check")
    cache.get(weights)
    call = cache.bound(
        weights, lambda results, *looks: _C.BoundCall(_all, _C.Template([None]), [0], results, None, *looks)
    )
    assert call is not None
    assert call((1,)) is not None
    weights.clear()
    gc.collect()
    assert call((1,)) is None


def test_policies_without_kept_results_have_no_calls() -> None:
    weights = [torch.ones(2)]
    live = PrologueCache(lambda weight: (weight * 2,), "live")
    live.get(weights)
    assert live.bound(weights, pytest.fail) is None
    with torch.inference_mode():
        unversioned = [torch.ones(2)]
    check = PrologueCache(lambda weight: (weight * 2,), "check")
    check.get(unversioned)
    assert check.bound(unversioned, pytest.fail) is None
