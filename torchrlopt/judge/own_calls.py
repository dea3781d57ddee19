"""Times the program's own calls, each made once, where no call is made just for timing.

Calls of one kind alternate between the original and the compiled code until the verdict is clear; both
compute the same, and write to the same state of the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchrlopt.judge import timing
from torchrlopt.judge.faster import Verdict
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.timing import Sample
from torchrlopt.torch_private.pytree import tree_leaves

_MOST_OTHERS = 100  # calls of other kinds in a row before giving up; each costs a look at its kind


class Trial:
    """Times calls of one kind; thread-safe."""

    def __init__(self, kind: Any, num_reports: int, policy: Policy) -> None:
        self.kind, self.num_reports = kind, num_reports
        self._num_others = 0
        self._policy = policy
        self._samples: timing.Samples = ([], [])
        self._spent_ms = 0.0
        self._lock = threading.Lock()

    @property
    def is_given_up(self) -> bool:
        """Whether such calls seem to have stopped."""
        return self._num_others > _MOST_OTHERS

    def takes(self, kind: Any) -> bool:
        """Whether a call is of this kind; counts those that are not."""
        is_taken = bool(kind == self.kind)
        self._num_others = 0 if is_taken else self._num_others + 1
        return is_taken

    def call(
        self,
        original: Callable[[], Any],
        compiled: Callable[[], Any],
        arguments: Iterable[Any],
        num_graphs: Callable[[], int] = lambda: 0,
    ) -> tuple[Any, Verdict | None]:
        """Make one call in one of two ways.

        The arguments say which device to synchronise with. A call that compiles a graph, so that `num_graphs`
        changes, is not timed.

        Returns:
            The result, and the verdict once there are enough samples.
        """
        if not self._lock.acquire(blocking=False):  # another thread's call would be timed with this one
            return compiled(), None
        try:
            which, before = self._turn(), num_graphs()
            result, sample = timed((original, compiled)[which], arguments)
            if num_graphs() != before:
                return result, None
            self._samples[which].append(sample)
            self._spent_ms += sample.ms
            return result, self._verdict()
        finally:
            self._lock.release()

    def _turn(self) -> int:
        """The order is original, compiled, compiled, original and so on."""
        before, after = map(len, self._samples)
        return int(after < before) if before != after else before % 2

    def _verdict(self) -> Verdict | None:
        before, after = map(len, self._samples)
        spent, min_gain = self._spent_ms / self._policy.limit_ms, self._policy.min_gain
        if before != after or not timing.is_over(self._samples, spent, min_gain):
            return None
        found = timing.verdict(self._samples, min_gain)
        return Verdict(self._policy.is_faster(found), found)


def timed(call: Callable[[], Any], arguments: Iterable[Any], is_brief: bool = False) -> tuple[Any, Sample]:
    """Return the result of a call, and its time; see `timing.sample_of`."""
    cuda = any(isinstance(x, torch.Tensor) and x.is_cuda for x in tree_leaves(arguments))
    results = []
    sample = timing.sample_of(lambda: results.append(call()), tuple, 1, cuda, is_brief)
    return results[0], sample
