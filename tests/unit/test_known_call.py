"""`_C.known_call`: which calls it takes, what it passes on, and what it leaves to Dynamo."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from typing import Any

import pytest
import torch

from torchrlopt import _C, optimise
from torchrlopt.api import shortcut
from torchrlopt.capture import guards

STATE = guards.dispatch_state()
AS_USUAL = {"_stance": types.SimpleNamespace(stance="default", backend=None)}

pytestmark = pytest.mark.skipif(STATE is None, reason="the state of the dispatcher cannot be read")


def known(**fields: Any) -> shortcut._Shortcut:
    """A known call that any other is like, but for these fields."""
    wrapper = types.SimpleNamespace(cache_entry=object() if fields.pop("in_force", True) else None)
    plain: dict[str, Any] = {
        "wrapper": wrapper,
        "check": lambda _: True,
        "state": STATE,
        "are_set": None,
        "pick": (0,),
        "run": list,
        "result": tuple,
        "guards": None,
        "kept": (),
    }
    return shortcut._Shortcut(**{**plain, **fields})


def call(*entries: Any, args: Any = (1,), kwargs: Any = None, free: Any = None, names: Any = AS_USUAL) -> Any:
    return _C.known_call(tuple(entries), free or {}, names, args, kwargs or {})


def test_the_first_one_that_it_is_like_answers() -> None:
    assert call(known(check=lambda _: False), known(result=sum), known(), args=(5,)) == 5
    assert call() is NotImplemented
    assert (
        call(known(check=lambda _: 0), known(in_force=False), known(are_set=lambda _: False))
        is NotImplemented
    )
    assert call(known(are_set=lambda _: True)) == (1,)


def test_checks_see_arguments_and_free_variables() -> None:
    seen: list[dict[str, Any]] = []
    free = {"model": 3}
    entry = known(check=lambda scope: not seen.append(dict(scope)), are_set=seen.append)
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
    for stance in ("default", "force_eager", "eager_on_recompile", "fail_on_recompile"):
        with torch.compiler.set_stance(stance):
            is_taken = call(known(), names=guards.EVAL_FRAME) == (1,)
            assert is_taken == guards.is_compiling_as_usual() == (stance == "default"), stance
    with torch.compiler.set_stance("default", force_backend="eager"):
        assert call(known(), names=guards.EVAL_FRAME) is NotImplemented
        assert not guards.is_compiling_as_usual()


def test_a_model_that_has_changed_is_told() -> None:
    assert call(known(run=lambda _: None), known()) is ...


@pytest.mark.parametrize("place", ["check", "are_set", "pick", "run", "result"])
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


def test_what_is_forgotten_meanwhile_lives_until_the_call_ends() -> None:
    def run(values: tuple[int, ...]) -> list[int]:
        shortcuts.forget()
        gc.collect()
        return [*values, 2]

    def forward(x: Any) -> Any:
        return model(x)

    model = torch.nn.ReLU()
    shortcuts = shortcut.Shortcuts(forward, model, "L['model']", is_frozen=True)
    shortcuts._known = (known(run=run),)
    living = weakref.ref(run)
    del run
    assert shortcuts.call((1,), {}) == (1, 2)
    assert living() is None
    assert shortcuts.call((1,), {}) is NotImplemented


def test_a_call_that_is_not_known_is_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    plain = shortcut.Shortcuts.call

    def call(self: shortcut.Shortcuts, args: Any, kwargs: Any) -> Any:
        asked.append(torch.is_grad_enabled())
        return plain(self, args, kwargs)

    monkeypatch.setattr(shortcut.Shortcuts, "call", call)
    fast = optimise(torch.nn.Linear(4, 4).eval(), measure=False, cache=False)
    for is_on in (False, True):
        asked.clear()
        with torch.set_grad_enabled(is_on):
            fast(torch.ones(2 + is_on, 4))
        assert asked == [False]


def test_where_the_state_cannot_be_read_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_is_state_readable", lambda: False)
    assert guards.dispatch_state() is None
    model, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
    fast: Any = optimise(model, x, measure=False, cache=False, min_gain=0)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(fast(x), model(x))
    assert not fast._torchrlopt_runner._shortcuts._known
    monkeypatch.undo()
    with torch.no_grad():
        for _ in range(4):
            fast(x)
    assert fast._torchrlopt_runner._shortcuts._known
