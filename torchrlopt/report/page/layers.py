"""Rows that both graphs of a drawing share, and the rows that are folded into one box.

An operator that both graphs have stands in the same row of both. Rows that repeat a block of others, and long
stretches in which nothing changed, become a band: one box that says what it holds.
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
_MAX_PERIOD = 80  # rows of a repeated block; the search for blocks is linear in it
_MIN_FOLDED = 4  # rows; a band of fewer saves no room
_MARGIN = 1  # rows around a change that are never folded
_MAX_DRAWN = 800  # operators of both graphs in the overview

Key = TypeVar("Key", int, str)


class Band(NamedTuple):
    """Rows that are drawn as one: from `first` up to but without `end`; `text` describes them."""

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
    """The operators that are drawn: what runs at every call, and the inputs of the graph."""
    return [each for each in graph.operators if not each.is_static and each.op != "Constant"]


def rows_of(drawing: Drawing) -> Rows:
    """Rows that are common to both graphs, if that does not stretch them too far."""
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
    """Rows of both graphs together; what the plan made is no lower than the last of what it is made of."""
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
    """Each node just above its first reader; a node that nobody reads just below its last input.

    Args:
        inputs: what each node reads; keys that are no nodes do not count.
        wanted: rows of nodes that may stand further down where nobody reads them.

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
    """The bands of a drawing that shows no more than what is worth looking at, in order."""
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
    """The block that saves most, folded except for its first instance; then the same above and below it."""
    best = (0, 0, 0)  # saved rows, -period, -first row: of two that save as many, the shorter period
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
    """Stretches without changes, outside of other bands."""
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
    """The bands, and one more for all that would make the drawing too large."""
    folded = {row for band in bands for row in range(band.first, band.end)}
    total = 0
    for row, size in enumerate(sizes):
        total += 0 if row in folded else size
        if total > _MAX_DRAWN:
            return [*(band for band in bands if band.end <= row), Band(row, len(sizes), "not drawn")]
    return bands
