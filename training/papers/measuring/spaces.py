"""Spaces of which every graph is measured, so that all answers are known: what is told, and what is true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchrlopt import _C
from torchrlopt.errors import RlOptError
from torchrlopt.executors.registry import Lowered
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
from training.device.prices import cost_of, typical_prices
from training.graphs.fingerprint import fingerprint
from training.papers.measuring.asking import (
    HOW,
    Floats,
    Space,
    Steps,
    least_seconds,
    ratios,
)
from training.papers.measuring.subjects import SUBJECTS
from training.papers.runner import Result, Work, kind, measured

MOST_GRAPHS = 1_000  # of a space
TOGETHER = 40  # graphs that are held lowered at the same time
FAILED = 10.0  # what is told of a graph that the executor does not run, as a share of the first one's time


def told_of_space(subject: str, executor: str, **others: Any) -> str:
    """What the times of a space depend on."""
    return f"{measured(executor=executor)} {HOW} {MOST_GRAPHS} {SUBJECTS[subject]}"


@kind(told_of_space, measures=True, own_process=True)
def space(work: Work, subject: str, executor: str, blocks: int) -> Result:
    """Measures every graph of a space: what all rows are then told when they ask.

    "ratios", [graphs][2][blocks], are times of blocks of calls by those of the first graph around them; what
    is told is of the first half, what is true of the second.
    """
    about, cost = SUBJECTS[subject], cost_of(typical_prices(executor))
    source = about.source()
    library = about.library(source.program.graph)
    whole = Space.whole(source.program.graph, library, cost, MOST_GRAPHS)
    shares: list[list[list[float]]] = [[] for _ in whole.graphs]
    reasons: dict[str, str] = {}
    first = source.lower(whole.graphs[0], executor)
    for begin in range(0, len(whole.graphs), TOGETHER):
        lowered: dict[int, Lowered] = {}
        for place in range(begin, min(begin + TOGETHER, len(whole.graphs))):
            try:
                lowered[place] = source.lower(whole.graphs[place], executor)
                least_seconds(lowered[place], source)
            except RlOptError as error:
                lowered.pop(place, None)
                reasons[str(place)] = str(error).splitlines()[0]
        for _ in range(2):
            for place, call in lowered.items():
                shares[place].append([round(each, 5) for each in ratios(call, first, source, blocks)])
    first_s = [least_seconds(first, source) for _ in range(2 * blocks)]
    return {
        "names": library.names,
        "first": whole.graphs[0].text(),
        "steps": whole.steps,
        "keys": list(map(fingerprint, whole.graphs)),
        "ratios": shares,
        "first_us": 1e6 * float(np.median(first_s)),
        "reasons": reasons,
    }


def told_of(found: Result, seed: int) -> Floats:
    """[N], one measurement of each graph, as shares of the first one's time: half of what is told."""
    rng = np.random.default_rng(seed)
    halves = [rng.permutation(each[0])[: len(each[0]) // 2] if each else [FAILED] for each in found["ratios"]]
    return np.array([np.median(each) for each in halves])


def true_of(found: Result) -> Floats:
    """[N], the same of calls that nobody is told of: what the least of many is really."""
    return np.array([np.median(each[1]) if each else FAILED for each in found["ratios"]])


def fastest_of(found: Result) -> int:
    """Position of the graph with the least time by the calls that are told.

    By those of `true_of` the fastest of many would be the luckiest too, and any choice slower than it.
    """
    return int(np.argmin([np.median(each[0]) if each else FAILED for each in found["ratios"]]))


def regret(order: Sequence[int], found: Result, seed: int) -> Floats:
    """[N], by how much the best after n measurements is truly slower than the fastest, as a share.

    Of the graphs measured so far the one is taken that was told to be fastest. Where a row stops asking, its
    last choice stays.
    """
    true, times = true_of(found), told_of(found, seed)[list(order)]
    is_best = times == np.minimum.accumulate(times)
    chosen = np.maximum.accumulate(np.where(is_best, np.arange(len(times)), 0))
    slower = true[np.asarray(order)[chosen]] / true[fastest_of(found)] - 1
    return np.concatenate([slower, np.full(len(true) - len(slower), slower[-1])])


def rebuilt(found: Result) -> Space:
    """Its graphs."""
    first, library = _C.parse_graph(found["first"]), subset_of(load_library(), found["names"])
    steps: list[Steps] = [[(name, at) for name, at in each] for each in found["steps"]]
    return Space([_C.replay(first, library, each) for each in steps], steps)
