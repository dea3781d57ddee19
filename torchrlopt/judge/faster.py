"""Decides whether a candidate is faster than the original."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torchrlopt.judge import timing
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.timing import Callee
from torchrlopt.report import Timing


class Verdict(NamedTuple):
    """The timing verdict on a candidate."""

    is_faster: bool
    timing: Timing


def against(
    original: Callee,
    candidate: Callee,
    inputs: Callable[[], Sequence[Any]],
    policy: Policy,
    *,
    settle: bool = False,
    is_warm: bool = False,
) -> Verdict:
    """Time a candidate against the original.

    See `timing.measure` about `inputs`, `settle` and `is_warm`.
    """
    found = timing.measure(original, candidate, inputs, policy.limit_ms, policy.min_gain, settle, is_warm)
    return Verdict(policy.is_faster(found), found)
