"""Rows shared by both graphs of a drawing, and the rows that are folded into one box.

An operator that is in both graphs has the same row in both. Rows that repeat a block of others, and long
stretches without changes, become a band: one box that says what it contains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple, TypeVar

from torchrlopt.report.drawing import Drawing, DrawnGraph, Operator

_MAX_STRETCH = (
    1.5  # beyond this many times the rows that each graph needs alone, common rows leave too many gaps
)
_MAX_PERIOD = 80  # rows of a repeated block; the search for blocks is linear in this
_MIN_FOLDED = 4  # rows; folding fewer saves no room
_MARGIN = 1  # rows around a change that are never folded
_MAX_DRAWN = 800  # most operators of both graphs in the overview

Key = TypeVar("Key", int, str)


class Band(NamedTuple):
    """Rows that are drawn as one, from `first` up to but excluding `end`; `text` describes them."""

    first: int
    end: int
    text: str


@dataclasses.dataclass(frozen=True)
class Rows:
    """The row of each drawn operator of both graphs, by its key, and the number of rows."""

    before: Mapping[int, int]
    after: Mapping[int, int]
    count: int


def drawn(graph: DrawnGraph) -> list[Operator]:
    """Return the operators to draw: those that run in every call, and the inputs of the graph."""
    return [each for each in graph.operators if not each.is_static and each.op != "Constant"]


def rows_of(drawing: Drawing) -> Rows:
    """Return rows shared by both graphs, unless that stretches them too far."""
    before, after = drawn(drawing.before), drawn(drawing.after)
    alone = layers(_inputs(before)), layers(_inputs(after))
    needed = 1 + max((row for side in alone for row in side.values()), default=-1)
    try:
        common = _common(before, after, drawing.origins)
    except CycleError:  # the plan swapped two operators
        return Rows(*alone, needed)
    used = {row: at for at, row in enumerate(sorted(set(common.values())))}
    if len(used) > _MAX_STRETCH * needed + _MIN_FOLDED:
        return Rows(*alone, needed)
    sides = [{each.key: used[common[each.key]] for each in side} for side in (before, after)]
    return Rows(sides[0], sides[1], len(used))


def _common(
    before: Sequence[Operator], after: Sequence[Operator], origins: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """Return the rows of both graphs together; a new operator is no lower than the last of its origins."""
    inputs = _inputs([*before, *after])
    row = layers(inputs)
    given = {each.key for each in before}
    wanted = {
        each.key: max((row[key] for key in origins[each.key] if key in row), default=0)
        for each in after
        if each.key not in given
    }
    row = layers(inputs, wanted)
    for each in after:  # inputs come first
        if each.key in wanted:
            above = max((row[key] for key in each.inputs if key in row), default=-1)
            row[each.key] = max(above + 1, min(row[each.key], wanted[each.key]))
    return row


def _inputs(operators: Iterable[Operator]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for each in operators:
        found.setdefault(each.key, []).extend(each.inputs)
    return found


def layers(inputs: Mapping[Key, Iterable[Key]], wanted: Mapping[Key, int] | None = None) -> dict[Key, int]:
    """Place each node just above its first reader; a node without readers just below its last input.

    Args:
        inputs: the keys that each node reads; keys that are not nodes are ignored.
        wanted: rows of nodes that may move further down if they have no readers.

    Raises:
        CycleError: there is no such order.
    """
    known = {key: [each for each in read if each in inputs] for key, read in inputs.items()}
    order = list(TopologicalSorter(known).static_order())
    row: dict[Key, int] = {}
    for key in order:
        row[key] = 1 + max((row[each] for each in known[key]), default=-1)
    highest_reader: dict[Key, int] = {}
    for key in reversed(order):
        is_read = key in highest_reader
        row[key] = highest_reader[key] - 1 if is_read else max(row[key], (wanted or {}).get(key, 0))
        for each in known[key]:
            highest_reader[each] = min(highest_reader.get(each, row[key]), row[key])
    return row


def bands_of(drawing: Drawing, rows: Rows) -> list[Band]:
    """Return the bands that reduce a drawing to what is worth seeing, in order."""
    before = {each.key for each in drawing.before.operators}
    after = {each.key for each in drawing.after.operators}
    contents: list[list[tuple[str, ...]]] = [[] for _ in range(rows.count)]
    for each in drawn(drawing.before):
        state = "stays" if each.key in after else "gone"
        contents[rows.before[each.key]].append((state, each.op, *each.types))
    for each in drawn(drawing.after):
        state = "stays" if each.key in before else "new"
        contents[rows.after[each.key]].append((state, each.op, *each.types))
    bands = _repeats([tuple(sorted(row)) for row in contents], 0, rows.count)
    is_changed = [any(each[0] != "stays" for each in row) for row in contents]
    if any(is_changed):
        bands += _unchanged(is_changed, bands)
    return _cut(sorted(bands), [len(row) for row in contents])


def _repeats(rows: Sequence[object], low: int, high: int) -> list[Band]:
    """Fold the repeated block that saves most, except for its first instance; recurse above and below it."""
    best = (0, 0, 0)  # saved rows, -period, -first row: of equal savings, prefer the shorter period
    for period in range(1, min(_MAX_PERIOD, (high - low) // 2) + 1):
        run = 0
        for at in range(high - period - 1, low - 1, -1):
            run = run + 1 if rows[at] == rows[at + period] else 0
            best = max(best, (run // period * period, -period, -at))
    saved, period, first = best[0], -best[1], -best[2]
    if saved < _MIN_FOLDED:
        return []
    what = "the layer above" if period == 1 else f"the {period} layers above"
    end = first + period + saved
    band = Band(first + period, end, f"{saved // period} × {what}")
    return [*_repeats(rows, low, first), band, *_repeats(rows, end, high)]


def _unchanged(is_changed: Sequence[bool], bands: Iterable[Band]) -> list[Band]:
    """Return stretches without changes, outside other bands."""
    count = len(is_changed)
    is_kept = [any(is_changed[max(0, at - _MARGIN) : at + _MARGIN + 1]) for at in range(count)]
    for band in bands:
        is_kept[band.first : band.end] = [True] * (band.end - band.first)
    edges = [-1, *(at for at in range(count) if is_kept[at]), count]
    return [
        Band(above + 1, below, "unchanged")
        for above, below in pairwise(edges)
        if below - above - 1 >= _MIN_FOLDED
    ]


def _cut(bands: list[Band], sizes: Sequence[int]) -> list[Band]:
    """Return the bands, with one more for everything that would make the drawing too large."""
    folded = {row for band in bands for row in range(band.first, band.end)}
    total = 0
    for row, size in enumerate(sizes):
        total += 0 if row in folded else size
        if total > _MAX_DRAWN:
            return [*(band for band in bands if band.end <= row), Band(row, len(sizes), "not drawn")]
    return bands
