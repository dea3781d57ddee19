"""Caches the results of a weight prologue per set of weights, and checks in every call that they are valid.

Results belong to the tensor objects they were computed from. They are valid as long as each object has the
same memory in the same version, and are dropped as soon as an object, or the memory it had, dies. So a new
tensor at an old address is never mistaken for the old weight, and a dead model leaves nothing behind. There
are as many sets as there are live instances used alternately.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from torchrlopt.errors import WeightsError
from torchrlopt.executors.weights.state import WeightsState, require_memory, storages_of
from torchrlopt.processes import renew_locks_in_forks

_Ids = tuple[int, ...]


@dataclasses.dataclass(eq=False, slots=True)
class _Known:
    """The cache entry of one set of weights.

    Attributes:
        state: the state of the weights.
        results: of the prologue; the error if it rejects these weights; None if it was deferred.
        references: weak references to the objects and their storages; they drop this entry when one dies.
        is_kept: whether this entry may be reused; False as soon as one of the weights has died.
    """

    state: WeightsState
    results: tuple[Any, ...] | WeightsError | None
    references: list[weakref.ref[Any]]
    is_kept: bool = False


class PrologueCache:
    """Calls a prologue only if a weight has changed; thread-safe.

    Args:
        compute: the prologue: takes the weights, returns the tuple of results.
        policy: "check" compares the weights in every call, "live" computes in every call, "frozen" once.
        is_expensive: whether the prologue is so slow that it is deferred until weights are used a second
            time, because weights that change in every call would incur it every time; never the first set.

    Attributes:
        num_evaluations: how often the prologue has been called.
    """

    def __init__(
        self,
        compute: Callable[..., tuple[Any, ...]],
        policy: Literal["check", "live", "frozen"],
        is_expensive: bool = False,
    ) -> None:
        self.num_evaluations = 0
        self._is_expensive = is_expensive
        self._compute = compute
        self._policy = policy
        self._is_frozen = policy == "frozen"
        self._known: dict[_Ids, _Known] = {}
        self._latest: _Known | None = None
        self._evaluating = threading.Lock()
        self._counting = threading.Lock()
        renew_locks_in_forks(self, "_evaluating", "_counting")

    @property
    def final(self) -> tuple[Any, ...] | None:
        """The results that stay valid even if the weights change; None if there are none (yet)."""
        known = self._latest
        if not self._is_frozen or known is None or isinstance(known.results, WeightsError):
            return None
        return known.results

    def get(self, weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The prologue's results for these weights; for a prologue that is never deferred.

        Raises:
            WeightsError: the prologue rejects these weights.
        """
        results = self.get_unless_new(weights)
        assert results is not None, "this prologue is never put off"
        return results

    def get_unless_new(self, weights: Sequence[torch.Tensor]) -> tuple[Any, ...] | None:
        """The prologue's results for these weights; None if it is slow and they have not been used before.

        Raises:
            WeightsError: the prologue rejects these weights.
        """
        known = self._latest
        is_latest = known is not None and known.is_kept and known.results is not None
        if known is None or not is_latest or not (self._is_frozen or known.state.is_of(weights)):
            if self._policy == "live" and weights:
                return self._evaluated(weights)
            watched = () if self._is_frozen else weights
            ids = tuple(map(id, watched))
            known = self._known.get(ids)
            if known is None or known.results is None or not known.state.is_of(watched):
                if any(weight.is_inference() for weight in watched):
                    # Inference tensors have no version counter: changes would go unnoticed, so cache nothing.
                    return self._evaluated(weights)
                known = self._renewed(ids, watched, weights)
            self._latest = known
            if not known.is_kept:  # or it has died since: do not keep its results alive
                self._latest = None
        if isinstance(known.results, WeightsError):
            raise copy.copy(known.results)
        return known.results

    def _renewed(self, ids: _Ids, watched: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> _Known:
        """Evaluate the prologue for new or changed weights, or record that they have been used."""
        with self._evaluating:
            known = self._known.get(ids)
            has_come = known is not None and known.state.is_of(watched)
            if known is not None and has_come and known.results is not None:
                return known  # another thread has evaluated it in the meantime
            is_put_off = self._is_expensive and not has_come and self.num_evaluations > 0
            # The values of these objects have changed, so results for the old values are no longer needed.
            self._drop(ids)
            require_memory(watched)
            forget = functools.partial(_forget, weakref.ref(self), ids)
            objects = [*watched, *storages_of(watched)]
            state, references = WeightsState(watched), [weakref.ref(each, forget) for each in objects]
            del objects
            results: tuple[Any, ...] | WeightsError | None
            try:
                results = None if is_put_off else self._evaluated(weights)
            except WeightsError as error:
                # Without its traceback, which references the weights.
                results = copy.copy(error)
            known = _Known(state, results, references)
            # If another thread has written meanwhile, it is unknown which values the results belong to.
            if state.is_of(watched) and all(reference() is not None for reference in references):
                known.is_kept = True
                self._known[ids] = known
                if any(reference() is None for reference in references):
                    self._drop(ids)  # one died in between, before there was an entry to drop
            return known

    def _drop(self, ids: _Ids) -> None:
        """Drop the entry of a set of weights."""
        known = self._known.pop(ids, None)
        if known is not None:
            known.is_kept = False
            if self._latest is known:
                self._latest = None

    def _evaluated(self, weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        with self._counting:
            self.num_evaluations += 1
        # Results outlive the call, so they must be plain tensors even if the caller is in inference mode. A
        # view keeps its base tensor object alive, which must not be the user's parameter.
        with torch.inference_mode(False), torch.no_grad():
            return tuple(self._compute(*[weight.detach() for weight in weights]))


def _forget(cache: weakref.ref[PrologueCache], ids: _Ids, _: object) -> None:
    """Drop the entry of a set of weights; called when one of them dies, in any thread."""
    living = cache()
    if living is not None:
        living._drop(ids)
