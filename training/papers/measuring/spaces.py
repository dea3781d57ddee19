"""Fully measured spaces: the measurements reported to rows, and the ground truth."""

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

MOST_GRAPHS = 1_000  # per space
TOGETHER = 40  # graphs that are kept lowered at the same time
FAILED = 10.0  # reported for a graph that the executor does not run, as a share of the first one's time


def told_of_space(subject: str, executor: str, **others: Any) -> str:
    """Everything that the times of a space depend on."""
    return f"{measured(executor=executor)} {HOW} {MOST_GRAPHS} {SUBJECTS[subject]}"


@kind(told_of_space, measures=True, own_process=True)
def space(work: Work, subject: str, executor: str, blocks: int) -> Result:
    """Measure every graph of a space, once for all rows.

    "ratios", [graphs][2][blocks], are times of blocks of calls divided by those of the first graph around
    them. Rows see measurements from the first half; the second half is the ground truth.
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
    """[N], one measurement of each graph, as shares of the first one's time: half of the reported blocks."""
    rng = np.random.default_rng(seed)
    halves = [rng.permutation(each[0])[: len(each[0]) // 2] if each else [FAILED] for each in found["ratios"]]
    return np.array([np.median(each) for each in halves])


def true_of(found: Result) -> Floats:
    """[N], times from the blocks that no row sees: an unbiased estimate even for the least of many."""
    return np.array([np.median(each[1]) if each else FAILED for each in found["ratios"]])


def fastest_of(found: Result) -> int:
    """Position of the graph with the least time in the reported blocks.

    By `true_of`, the fastest of many would be the luckiest too, and any other choice would look slower.
    """
    return int(np.argmin([np.median(each[0]) if each else FAILED for each in found["ratios"]]))


def regret(order: Sequence[int], found: Result, seed: int) -> Floats:
    """[N], regret: how much slower, as a share, the best after n measurements truly is than the fastest.

    The choice is the graph with the least reported time so far. After a row stops, its last choice stays.
    """
    true, times = true_of(found), told_of(found, seed)[list(order)]
    is_best = times == np.minimum.accumulate(times)
    chosen = np.maximum.accumulate(np.where(is_best, np.arange(len(times)), 0))
    slower = true[np.asarray(order)[chosen]] / true[fastest_of(found)] - 1
    return np.concatenate([slower, np.full(len(true) - len(slower), slower[-1])])


def rebuilt(found: Result) -> Space:
    """Rebuild the space with its graphs."""
    first, library = _C.parse_graph(found["first"]), subset_of(load_library(), found["names"])
    steps: list[Steps] = [[(name, at) for name, at in each] for each in found["steps"]]
    return Space([_C.replay(first, library, each) for each in steps], steps)
