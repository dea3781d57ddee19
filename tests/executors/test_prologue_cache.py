"""The prologue cache: recomputed exactly when a weight changed, and never keeps deleted weights alive."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tests import forks
from torchrlopt.errors import WeightsError
from torchrlopt.executors.weights.prologue_cache import PrologueCache


class _Counted:
    """A prologue that counts its calls."""

    def __init__(self, function: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls += 1
        return self.function(*weights)


def _total(*weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.stack([weight.sum() for weight in weights]).sum(),)


def _weights(count: int = 2) -> list[torch.Tensor]:
    return [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(count)]


def _is_right(cache: PrologueCache, weights: list[torch.Tensor]) -> bool:
    return torch.equal(cache.get(weights)[0], _total(*weights)[0])


def _update(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.add_(1.0)


def _replace_data(weight: torch.Tensor) -> None:
    weight.data = torch.randn(4, 4)


def test_the_version_of_another_object_proves_nothing() -> None:
    """`.data` counts for itself: a fresh one is in its first version whatever was written to the weight."""
    cache, weights = PrologueCache(_total, "check"), [torch.zeros(4, 4)]
    for _ in range(3):
        assert _is_right(cache, [weights[0].data])
        _update(weights[0])


def test_an_address_used_again_is_not_the_old_weight() -> None:
    # What an allocator does with freed memory, made certain: a new storage at the address of the dead one.
    memory = np.ones((4, 4), dtype=np.float32)
    cache, weights = PrologueCache(_Counted(_total), "check"), _weights(1)
    weights[0].data = torch.from_numpy(memory)
    before = weights[0].data_ptr(), weights[0]._version
    assert _is_right(cache, weights)
    weights[0].data = torch.empty(0)
    memory[:] = 5.0
    weights[0].data = torch.from_numpy(memory)
    assert (weights[0].data_ptr(), weights[0]._version) == before
    assert _is_right(cache, weights)


def test_instances_that_share_a_weight_are_told_apart() -> None:
    prologue = _Counted(_total)
    cache = PrologueCache(prologue, "check")
    first, *others = _weights(4)
    for _ in range(3):
        assert all(_is_right(cache, [first, other]) for other in others)
    assert prologue.calls == 3
    _update(first)
    assert all(_is_right(cache, [first, other]) for other in others)


def test_training_steps_do_not_push_other_instances_out() -> None:
    prologue = _Counted(_total)
    cache, still, moving = PrologueCache(prologue, "check"), _weights(), _weights()
    cache.get(still)
    results = []
    for _ in range(8):
        _update(moving[0])
        assert _is_right(cache, moving)
        results.append(weakref.ref(cache.get(moving)[0]))
    assert [result() is not None for result in results] == [False] * 7 + [True], "only the last is kept"
    calls = prologue.calls
    assert _is_right(cache, still)
    assert prologue.calls == calls


class _Session:
    """A result that reads weights where they are and is no tensor."""

    def __init__(self, *weights: torch.Tensor) -> None:
        self.weights = weights


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize(
    "function", [_total, lambda w: (w.t(),), lambda w: (_Session(w),)], ids=["own memory", "view", "session"]
)
def test_dead_weights_are_let_go_and_their_results(function: Callable[..., tuple[object, ...]]) -> None:
    cache = PrologueCache(function, "check")
    for _ in range(3):
        weight = torch.nn.Parameter(torch.randn(4, 4))
        storage = weakref.ref(weight.untyped_storage())
        result = weakref.ref(cache.get([weight])[0])
        assert storage() is not None
        assert result() is not None
        del weight
        gc.collect()
        assert storage() is None
        assert result() is None


def test_memory_that_an_object_had_before_is_let_go() -> None:
    cache, weights = PrologueCache(_total, "check"), _weights(1)
    result = weakref.ref(cache.get(weights)[0])
    weights[0].data = torch.randn(4, 4)
    assert result() is None


def test_a_cache_that_is_gone_leaves_no_results_behind() -> None:
    weights = _weights()
    cache = PrologueCache(_total, "check")
    result = weakref.ref(cache.get(weights)[0])
    gc.disable()
    try:
        del cache
        assert result() is None, "without the help of the garbage collector"
    finally:
        gc.enable()


# ---- memory that others write to


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.float8_e4m3fn, torch.int8, torch.bool],
    ids=str,
)
def test_parts_of_a_larger_memory_are_compared(dtype: torch.dtype) -> None:
    memory = torch.tensor([float("nan"), *range(1, 12)]).to(dtype)
    prologue = _Counted(lambda *weights: tuple(weight.clone() for weight in weights))
    cache = PrologueCache(prologue, "check")
    # As optimisers with a flat buffer do it; the second is not contiguous.
    weights = [torch.nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False) for _ in range(2)]
    weights[0].data, weights[1].data = memory[:4], memory[4:].view(4, 2).t()
    for _ in range(3):
        cache.get(weights)
    assert prologue.calls == 1, "also where an element is NaN, which equals nothing"
    memory[-1] = 0
    assert torch.equal(cache.get(weights)[1].double(), weights[1].double())
    assert prologue.calls == 2


# ---- other threads


class _Halted:
    """A prologue that waits in the middle until it is told to go on."""

    def __init__(self) -> None:
        self.is_inside, self.may_go_on = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self, weight: torch.Tensor) -> tuple[torch.Tensor]:
        self.calls += 1
        result = weight.sum()
        self.is_inside.set()
        assert self.may_go_on.wait(60)
        return (result,)


@pytest.fixture
def halted() -> Iterator[_Halted]:
    prologue = _Halted()
    yield prologue
    prologue.may_go_on.set()


@pytest.mark.parametrize("change", [_update, _replace_data])
def test_what_is_written_while_the_prologue_runs_is_seen_afterwards(
    change: Callable[[torch.Tensor], None], halted: _Halted
) -> None:
    cache, weights = PrologueCache(halted, "check"), _weights(1)
    caller = threading.Thread(target=cache.get, args=(weights,))
    caller.start()
    assert halted.is_inside.wait(60)
    change(weights[0])
    halted.may_go_on.set()
    caller.join(60)
    assert not caller.is_alive()
    assert torch.equal(cache.get(weights)[0], weights[0].sum())
    assert halted.calls == 2


def test_threads_that_meet_new_weights_at_once_compute_once(halted: _Halted) -> None:
    cache, weights = PrologueCache(halted, "check"), _weights(1)
    results: list[torch.Tensor] = []
    callers = [threading.Thread(target=lambda: results.append(cache.get(weights)[0])) for _ in range(8)]
    for caller in callers:
        caller.start()
    assert halted.is_inside.wait(60)
    halted.may_go_on.set()
    for caller in callers:
        caller.join(60)
    assert len(results) == 8
    assert all(result is results[0] for result in results)
    assert halted.calls == cache.num_evaluations == 1


def test_a_fork_does_not_wait_for_a_thread_that_it_does_not_have(halted: _Halted) -> None:
    cache, weights, others = PrologueCache(halted, "check"), _weights(1), _weights(1)
    caller = threading.Thread(target=cache.get, args=(weights,))
    caller.start()
    assert halted.is_inside.wait(60)

    def child() -> None:
        halted.may_go_on.set()
        assert torch.equal(cache.get(others)[0], others[0].sum())

    number = forks.fork(child)
    assert forks.wait(number, 20.0) == 0
    halted.may_go_on.set()
    caller.join(60)


def test_one_thread_does_not_wait_for_the_weights_of_another(halted: _Halted) -> None:
    cache, weights, others = PrologueCache(halted, "check"), _weights(1), _weights(1)
    halted.may_go_on.set()
    cache.get(weights)
    halted.is_inside.clear()
    halted.may_go_on.clear()
    caller = threading.Thread(target=cache.get, args=(others,))
    caller.start()
    assert halted.is_inside.wait(60)
    assert torch.equal(cache.get(weights)[0], weights[0].sum())
    halted.may_go_on.set()
    caller.join(60)


# ---- weights that a prologue refuses


def test_a_refusal_is_remembered_and_ends_with_the_weights() -> None:
    def refuse_infinities(weight: torch.Tensor) -> tuple[torch.Tensor]:
        if not weight.isfinite().all():
            raise WeightsError("no", got="an infinity")
        return (weight.sum(),)

    prologue = _Counted(refuse_infinities)
    cache, weights = PrologueCache(prologue, "check"), _weights(1)
    with torch.no_grad():
        weights[0][0, 0] = float("inf")
    for _ in range(3):
        with pytest.raises(WeightsError, match="no; got: an infinity"):
            cache.get(weights)
    assert prologue.calls == cache.num_evaluations == 1
    with torch.no_grad():
        weights[0][0, 0] = 1.0
    assert torch.equal(cache.get(weights)[0], weights[0].sum())
    with torch.no_grad():
        weights[0][0, 0] = float("inf")
    with pytest.raises(WeightsError):
        cache.get(weights)
    weight = weakref.ref(weights.pop())
    assert weight() is None, "no error holds the weights"


def test_an_error_that_may_pass_is_not_remembered() -> None:
    def fail_once(weight: torch.Tensor) -> tuple[torch.Tensor]:
        if prologue.calls == 1:
            raise MemoryError
        return (weight.sum(),)

    prologue = _Counted(fail_once)
    cache, weights = PrologueCache(prologue, "check"), _weights(1)
    with pytest.raises(MemoryError):
        cache.get(weights)
    assert torch.equal(cache.get(weights)[0], weights[0].sum())


# ---- policies


def test_live_computes_at_every_call_and_frozen_once() -> None:
    for policy, expected in (("live", 3), ("frozen", 1)):
        prologue = _Counted(_total)
        cache, weights = PrologueCache(prologue, policy), _weights()  # type: ignore[arg-type]
        for _ in range(3):
            _update(weights[0])
            cache.get(weights)
        assert prologue.calls == cache.num_evaluations == expected


def test_frozen_results_outlive_the_weights() -> None:
    prologue = _Counted(_total)
    cache = PrologueCache(prologue, "frozen")
    first = cache.get(_weights())
    gc.collect()
    assert cache.get(_weights()) is first
    assert prologue.calls == 1


def test_inference_tensors_have_no_version_and_are_never_cached() -> None:
    cache = PrologueCache(_Counted(_total), "check")
    with torch.inference_mode():
        weights = [torch.randn(4, 4)]
        assert _is_right(cache, weights)
        weights[0].add_(1.0)
        assert _is_right(cache, weights)


def test_results_computed_in_inference_mode_are_plain_tensors() -> None:
    cache = PrologueCache(lambda w: (w.detach() * 2,), "check")
    weights = _weights(1)
    with torch.inference_mode():
        assert not cache.get(weights)[0].is_inference()
