"""`_C.known_call`: which calls it takes, what it passes on, and what it leaves to Dynamo."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchrlopt import _C
from torchrlopt.capture import guards

STATE = guards.dispatch_state()
AS_USUAL = {"_stance": types.SimpleNamespace(stance="default", backend=None)}

pytestmark = pytest.mark.skipif(STATE is None, reason="the state of the dispatcher cannot be read")


def known(
    *,
    in_force: bool = True,
    check: Callable[..., Any] = lambda scope: True,
    state: Any = STATE,
    hold: Any = None,
    pick: Any = (0,),
    run: Callable[..., Any] = lambda values: list(values),
    result: Callable[..., Any] = tuple,
) -> tuple[Any, ...]:
    wrapper = types.SimpleNamespace(cache_entry=object() if in_force else None)
    return (wrapper, check, state, hold, pick, run, result)


def call(*entries: Any, args: Any = (1,), kwargs: Any = None, free: Any = None, names: Any = AS_USUAL) -> Any:
    return _C.known_call(tuple(entries), free or {}, names, args, kwargs or {})


def test_the_first_one_that_it_is_like_answers() -> None:
    assert call(known(check=lambda _: False), known(result=sum), known(), args=(5,)) == 5
    assert call() is NotImplemented
    assert (
        call(known(check=lambda _: 0), known(in_force=False), known(hold=lambda _: False)) is NotImplemented
    )
    assert call(known(hold=lambda _: True)) == (1,)


def test_checks_see_arguments_and_free_variables() -> None:
    seen: list[dict[str, Any]] = []
    free = {"model": 3}
    entry = known(check=lambda scope: not seen.append(dict(scope)), hold=seen.append)
    assert call(entry, args=(1, 2), kwargs={"a": 4}, free=free) is NotImplemented
    assert seen == [{"model": 3, "args": (1, 2), "kwargs": {"a": 4}}] * 2
    assert free == {"model": 3}


def test_what_a_call_brings_along_is_picked() -> None:
    assert call(known(pick=(2, 0, 0)), args=(1, 2, 3)) == (3, 1, 1)
    assert call(known(pick=())) == ()
    assert call(known(pick=lambda args, kwargs: (kwargs["a"], *args)), kwargs={"a": 7}) == (7, 1)


def test_another_state_of_the_dispatcher_is_told() -> None:
    for state in (None, b"", b"\1" * 16, bytes(15)):
        assert call(known(state=state)) is NotImplemented
    with torch.inference_mode():
        assert call(known()) is NotImplemented
        assert call(known(state=guards.dispatch_state())) == (1,)
    assert call(known()) == (1,)


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"_stance": types.SimpleNamespace(stance="force_eager", backend=None)},
        {"_stance": types.SimpleNamespace(stance="default", backend="eager")},
        {"_stance": types.SimpleNamespace(stance=None, backend=None)},
    ],
)
def test_another_stance_is_told(names: dict[str, Any]) -> None:
    assert call(known(), names=names) is NotImplemented


def test_dynamo_has_its_stance_where_it_is_looked_for() -> None:
    assert call(known(), names=guards.STANCES) == (1,)
    with torch.compiler.set_stance("force_eager"):
        assert call(known(), names=guards.STANCES) is NotImplemented


def test_a_model_that_has_changed_is_told() -> None:
    assert call(known(run=lambda _: None), known()) is ...


@pytest.mark.parametrize("place", ["check", "hold", "pick", "run", "result"])
def test_errors_are_raised_as_they_are(place: str) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("as it is")

    with pytest.raises(KeyError, match="as it is"):
        call(known(**{place: fail}))
    with pytest.raises(IndexError):
        call(known(pick=(3,)))
    with pytest.raises(TypeError):
        call((1, 2))


def test_no_reference_is_lost_or_kept() -> None:
    value, free = object(), {"model": object()}
    entry = known(run=lambda values: values)
    args, kwargs = (value,), {"a": value}
    counted = (value, free["model"], args, kwargs, entry, *entry, None, NotImplemented, ...)
    before = [sys.getrefcount(each) for each in counted]
    for _ in range(100):
        call(entry, args=args, kwargs=kwargs, free=free)
        call(known(run=lambda _: None), args=args)
        call(known(in_force=False), args=args)
    after = [sys.getrefcount(each) for each in counted]
    assert all(abs(now - then) < 50 for now, then in zip(after, before, strict=True))


def test_what_a_call_lets_go_of_is_alive_until_its_end() -> None:
    entries = [known(run=lambda values: entries.clear() or [*values, 2])]
    assert call(*entries) == (1, 2)
