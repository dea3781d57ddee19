"""Runs the rewritten graph for the sizes for which it is faster, and the original for all others.

A graph whose sizes are symbols serves calls of any size, but it was timed for the sizes of the first call. So
it is timed again in the first call of each bucket: all calls whose sizes lie between the same powers of two.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from torchrlopt.capture import aot
from torchrlopt.compile.compiled import Compiled
from torchrlopt.compile.fallback import warn_of
from torchrlopt.judge import faster
from torchrlopt.judge.policy import Policy
from torchrlopt.options import OnError
from torchrlopt.processes import renew_locks_in_forks

_LIMIT_MS = 60.0
"""Of one timing, in milliseconds, as a call waits for it."""


class BySize:
    """One of Dynamo's graphs, rewritten or not, by the sizes of a call; thread-safe.

    `sizes` and `mutated` are positions among the inputs: of sizes, and of inputs that the graph writes to.
    With `settle`, timing waits for the runtime's threads to go to sleep.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        original: Callable[..., Any],
        compiled: Compiled,
        sizes: Sequence[int],
        mutated: Collection[int],
        policy: Policy,
        settle: bool,
        on_error: OnError,
    ) -> None:
        self._run, self._original, self._compiled = run, original, compiled
        self._sizes, self._mutated, self._settle = tuple(sizes), frozenset(mutated), settle
        self._policy = dataclasses.replace(policy, limit_ms=min(policy.limit_ms, _LIMIT_MS))
        self._on_error = on_error
        self._lock = threading.Lock()
        renew_locks_in_forks(self, "_lock")

    def know(self, args: Sequence[Any]) -> None:
        """Note that the rewritten graph is faster for arguments like these."""
        self._compiled.is_faster_for[self._bucket(args)] = True

    def __call__(self, *args: Any) -> Any:
        """Run on the inputs of Dynamo's graph."""
        bucket = self._bucket(args)
        is_faster = self._compiled.is_faster_for.get(bucket)
        if is_faster is None:
            try:
                is_faster = self._judged(bucket, args)
            except Exception as error:
                if self._on_error == "raise":
                    raise
                outputs = self._original(*args)  # raises, too, if the call is wrong
                self._compiled.is_faster_for[bucket] = False
                warn_of(error)
                return outputs
        return self._run(*args) if is_faster else self._original(*args)

    def _bucket(self, args: Sequence[Any]) -> tuple[int, ...]:
        return tuple([int(args[at]).bit_length() for at in self._sizes])

    def _judged(self, bucket: tuple[int, ...], args: Sequence[Any]) -> bool:
        """Compare the outputs of both for these sizes, and time them."""
        is_capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if is_capturing or not self._lock.acquire(blocking=False):  # or another thread is timing
            return False
        compiled = self._compiled
        try:
            compiled.compares_next = threading.get_ident()
            found = faster.against(
                self._original, self._run, lambda: self._copies(args), self._policy, settle=self._settle
            )
            is_faster = found.is_faster and compiled.lowered is not None
            compiled.is_faster_for[bucket] = is_faster
            compiled.status.note_sizes(bucket, found.timing, is_faster)
            return is_faster
        finally:
            compiled.compares_next = None
            self._lock.release()

    def _copies(self, args: Sequence[Any]) -> list[Any]:
        return [aot.copy_of(x) if at in self._mutated else x for at, x in enumerate(args)]
