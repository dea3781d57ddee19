"""Layered drawing of an acyclic graph: order within layers, coordinates, and the ways of the edges.

The method is Sugiyama's: long edges get a place in every layer that they pass (shared by all edges of one
source), barycentres order the layers, and coordinates minimise the squared distance to the neighbours without
overlaps (pooling adjacent violators, exact for one layer).
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence

_SWEEPS = 8
_ROUNDS = 21  # the last one from above to below
_LAST_ROUNDS = 9  # with the neighbours on both sides, but for chains and passing edges, which become straight
_GAP = 18.0
_LANE = 10.0  # width that a passing edge takes
_STRAIGHT = 40.0  # how much stronger chains and passing edges pull than others
_LOOSE = 0.1  # how much what has no neighbours stays where it is

Key = Hashable
Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Box:
    """What is laid out.

    Attributes:
        layer: row, from 0; every edge leads to a larger one.
        width: in pixels.
        height: in pixels.
    """

    layer: int
    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where everything is.

    Attributes:
        centres: of the boxes.
        ways: of the edges, by source: lines that go through these points, from above to below.
        width: of the whole drawing.
        height: of the whole drawing.
    """

    centres: Mapping[Key, Point]
    ways: Mapping[Key, Sequence[Sequence[Point]]]
    width: float
    height: float


def lay_out(
    boxes: Mapping[Key, Box],
    edges: Iterable[tuple[Key, Key]],
    row_heights: Sequence[float],
    gap: float = 34.0,
) -> Layout:
    """Lay out a graph.

    Args:
        boxes: by key.
        edges: from box to box, each once.
        row_heights: of each layer; shared by drawings that stand side by side.
        gap: between two rows.
    """
    tops = [gap / 2]
    for height in row_heights:
        tops.append(tops[-1] + height + gap)
    targets: dict[Key, list[Key]] = {}
    for source, target in edges:
        targets.setdefault(source, []).append(target)
    lanes, links = _lanes(boxes, targets)
    rows = _ordered(boxes, lanes, links, len(row_heights))
    x = _coordinates(rows, links, {key: box.width for key, box in boxes.items()})
    half = {key: box.width / 2 for key, box in boxes.items()}
    left = min((x[key] - half.get(key, 0.0) for row in rows for key in row), default=0.0)
    right = max((x[key] + half.get(key, 0.0) for row in rows for key in row), default=0.0)
    shift = _GAP - left
    middle = [top + height / 2 for top, height in zip(tops, row_heights, strict=False)]
    centres = {key: (x[key] + shift, middle[box.layer]) for key, box in boxes.items()}

    def ends(key: Key, is_source: bool) -> list[Point]:
        if key in boxes:
            (at, centre), box = centres[key], boxes[key]
            return [(at, centre + (box.height if is_source else -box.height) / 2)]
        layer = lanes[key]
        through = [(x[key] + shift, tops[layer]), (x[key] + shift, tops[layer] + row_heights[layer])]
        return through[1:] if is_source else through

    ways: dict[Key, list[list[Point]]] = {}
    for above, below in links:
        source = above if above in boxes else above[0]  # type: ignore[index]  # a lane is (source, layer)
        ways.setdefault(source, []).append([*ends(above, True), *ends(below, False)])
    return Layout(centres, ways, right - left + 2 * _GAP, tops[-1] - gap / 2)


def _lanes(
    boxes: Mapping[Key, Box], targets: Mapping[Key, list[Key]]
) -> tuple[dict[Key, int], list[tuple[Key, Key]]]:
    """Places for edges in the layers that they pass, and links between neighbouring layers."""
    lanes: dict[Key, int] = {}
    links: list[tuple[Key, Key]] = []
    for source, each in targets.items():
        first = boxes[source].layer + 1
        last = max(boxes[target].layer for target in each)
        chain: list[Key] = [source]
        for layer in range(first, last):
            lanes[(source, layer)] = layer
            links.append((chain[-1], (source, layer)))
            chain.append((source, layer))
        links += [(chain[boxes[target].layer - first], target) for target in each]
    return lanes, links


def _ordered(
    boxes: Mapping[Key, Box], lanes: Mapping[Key, int], links: Sequence[tuple[Key, Key]], num_rows: int
) -> list[list[Key]]:
    """The rows, each from left to right, with few crossings."""
    rows: list[list[Key]] = [[] for _ in range(num_rows)]
    for key, box in boxes.items():
        rows[box.layer].append(key)
    for key, layer in lanes.items():
        rows[layer].append(key)
    above, below = _neighbours(links)
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(_SWEEPS):
        is_down = sweep % 2 == 0
        near = above if is_down else below
        order = range(1, num_rows) if is_down else range(num_rows - 2, -1, -1)
        for number in order:
            fixed = rows[number - 1 if is_down else number + 1]
            place = {key: float(at) for at, key in enumerate(fixed)}
            rows[number] = _by_barycentre(rows[number], near, place)
        found = _crossings(rows, below)
        if found < fewest:
            best, fewest = [list(row) for row in rows], found
        if fewest == 0:
            break
    return best


def _neighbours(links: Sequence[tuple[Key, Key]]) -> tuple[dict[Key, list[Key]], dict[Key, list[Key]]]:
    above: dict[Key, list[Key]] = {}
    below: dict[Key, list[Key]] = {}
    for source, target in links:
        above.setdefault(target, []).append(source)
        below.setdefault(source, []).append(target)
    return above, below


def _by_barycentre(
    row: Sequence[Key], near: Mapping[Key, list[Key]], place: Mapping[Key, float]
) -> list[Key]:
    """A row sorted by the mean place of each key's neighbours; a key without any stays where it is."""
    wanted = {
        key: sum(place[each] for each in near[key]) / len(near[key]) if near.get(key) else float(at)
        for at, key in enumerate(row)
    }
    return sorted(row, key=lambda key: wanted[key])


def _crossings(rows: Sequence[Sequence[Key]], below: Mapping[Key, list[Key]]) -> int:
    """Pairs of links that cross."""
    count = 0
    for upper, lower in itertools.pairwise(rows):
        place = {key: at for at, key in enumerate(lower)}
        seen: list[int] = []
        for key in upper:
            ends = sorted(place[each] for each in below.get(key, ()))
            count += sum(len(seen) - bisect.bisect_right(seen, end) for end in ends)
            for end in ends:
                bisect.insort(seen, end)
    return count


def _coordinates(
    rows: Sequence[Sequence[Key]], links: Sequence[tuple[Key, Key]], widths: Mapping[Key, float]
) -> dict[Key, float]:
    """Horizontal centres."""
    above, below = _weighted(links, widths)
    near = [above, below]
    around = {key: [*above.get(key, ()), *below.get(key, ())] for row in rows for key in row}
    straight = [
        {key: [pull for pull in side.get(key, ()) if pull[1] == _STRAIGHT] or around[key] for key in around}
        for side in near
    ]
    x: dict[Key, float] = {}
    for row in rows:
        at = 0.0
        for key in row:
            width = widths.get(key, _LANE)
            x[key] = at + width / 2
            at += width + _GAP
        for key in row:
            x[key] -= at / 2
    for turn in range(_ROUNDS):
        pulls = (near if turn < _ROUNDS - _LAST_ROUNDS else straight)[turn % 2]
        for row in rows if turn % 2 == 0 else reversed(rows):
            _settle(row, pulls, x, widths)
    return x


_Pulls = dict[Key, list[tuple[Key, float]]]


def _weighted(links: Sequence[tuple[Key, Key]], widths: Mapping[Key, float]) -> tuple[_Pulls, _Pulls]:
    """Neighbours above and below with the strength of their links: chains and passing edges are straight."""
    plain_above, plain_below = _neighbours(links)
    above: _Pulls = {}
    below: _Pulls = {}
    for source, target in links:
        is_passing = source not in widths and target not in widths
        is_chain = len(plain_below[source]) == 1 and len(plain_above[target]) == 1
        weight = _STRAIGHT if is_passing or is_chain else 1.0
        above.setdefault(target, []).append((source, weight))
        below.setdefault(source, []).append((target, weight))
    return above, below


def _settle(row: Sequence[Key], near: _Pulls, x: dict[Key, float], widths: Mapping[Key, float]) -> None:
    """Move a row as near to its neighbours as it may without overlaps."""
    blocks: list[tuple[float, float, int]] = []  # weighted sum, weight, number of keys
    offset, offsets = 0.0, []
    for at, key in enumerate(row):
        if at:
            offset += (widths.get(row[at - 1], _LANE) + widths.get(key, _LANE)) / 2 + _GAP
        offsets.append(offset)
        pulls = near.get(key) or [(key, _LOOSE)]
        weight = sum(strength for _, strength in pulls)
        total = sum(x[other] * strength for other, strength in pulls) - offset * weight
        count = 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / weight:
            before = blocks.pop()
            total, weight, count = before[0] + total, before[1] + weight, before[2] + count
        blocks.append((total, weight, count))
    at = 0
    for total, weight, count in blocks:
        for _ in range(count):
            x[row[at]] = total / weight + offsets[at]
            at += 1
