"""Attempts and contests with predefined times."""

from __future__ import annotations

import math
from typing import Any

from torchrlopt.compile.attempt import Attempt
from torchrlopt.compile.choice import Contest
from torchrlopt.judge.policy import Policy
from torchrlopt.options import Options
from torchrlopt.report import Journal, Timing


def attempted(
    options: Options, journal: Journal, before_ms: float, after_ms: float, run: Any = None, **timing: Any
) -> Attempt:
    """An attempt that took so long; the name of its executor stands for the graph."""
    found = Timing(before_ms, after_ms, 1 - after_ms / before_ms, timing.pop("spread", 0.0), 3, **timing)
    journal.add(executor=options.executor, searcher=options.search.searcher)
    journal.add_timing(found)
    return Attempt(options, journal, run or options.executor, found)


def contest_of(
    attempt: Any, duel: Any, options: Options, price: Any = lambda *_: 1.0, enough: float = math.inf
) -> Contest:
    """A contest of attempts that are given.

    Args:
        attempt: makes them.
        duel: decides between two graphs.
        options: the user's.
        price: the ratio of two prices, by the names of two executors.
        enough: a speedup after which no other runtime is tried.
    """
    policy = Policy(good_enough_speedup=enough)
    return Contest(attempt, duel, policy, options, Journal(), price)
