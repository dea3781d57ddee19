"""Both graphs in common layers, so that what stands side by side belongs together, and what is left out.

An operator that survives stands in the same layer in both drawings, one that was made stands where the last
of those stood that it comes from. Layers that repeat a block of others, and long stretches in which nothing
changed, can be folded into a band, which is drawn as one box and says what it holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from torchrlopt.report.drawing import Drawing, DrawnGraph, Operator

_TURNS = 6
_MAX_STRETCH = 1.5  # of the number of layers, for the sake of alignment
_MAX_PERIOD = 80  # layers
_MIN_FOLDED = 4  # layers
_MARGIN = 1  # layers around a change that are drawn
_MAX_DRAWN = 400  # operators of one graph in the overview


@dataclasses.dataclass(frozen=True)
class Band:
    """Layers that are drawn as one.

    Attributes:
        first: the first layer.
        end: the layer behind the last one.
        text: what they are, in words.
    """

    first: int
    end: int
    text: str


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of both graphs.

    Attributes:
        before: layer of each drawn operator of the first graph, by key.
        after: the same of the second.
        count: number of layers.
    """

    before: Mapping[int, int]
    after: Mapping[int, int]
    count: int


def drawn(graph: DrawnGraph) -> list[Operator]:
    """The operators that are drawn: what runs at every call, and the inputs of the graph."""
    return [each for each in graph.operators if not each.is_static and each.op != "Constant"]


def layers_of(drawing: Drawing) -> Layers:
    """Layers that are common to both graphs."""
    sides = (drawn(drawing.before), drawn(drawing.after))
    plain = [_deepest(side, {}) for side in sides]
    before, after = plain
    for _ in range(_TURNS):
        anchors = {
            each.key: before.get(each.key, _lowest(before, drawing.origins[each.key])) for each in sides[1]
        }
        after = _deepest(sides[1], anchors)
        lower = _deepest(sides[0], {key: after[key] for key in before if key in after})
        if lower == before:
            break
        before = lower
    height = max((*before.values(), *after.values()), default=0)
    most = max((*plain[0].values(), *plain[1].values()), default=0)
    if height > _MAX_STRETCH * most + _MIN_FOLDED:
        before, after = plain
    before, after = _lowered(drawing, sides, before, after)
    used = {layer: at for at, layer in enumerate(sorted({*before.values(), *after.values()}))}
    return Layers(
        {key: used[layer] for key, layer in before.items()},
        {key: used[layer] for key, layer in after.items()},
        len(used),
    )


def _lowest(layer: Mapping[int, int], keys: Sequence[int]) -> int:
    return max((layer.get(key, 0) for key in keys), default=0)


def _deepest(side: Sequence[Operator], at_least: Mapping[int, int]) -> dict[int, int]:
    """One below the lowest input, and no higher than asked for."""
    layer: dict[int, int] = {}
    for each in side:
        inputs = (layer[key] + 1 for key in each.inputs if key in layer)
        layer[each.key] = max((at_least.get(each.key, 0), *inputs))
    return layer


def _lowered(
    drawing: Drawing,
    sides: tuple[Sequence[Operator], Sequence[Operator]],
    before: Mapping[int, int],
    after: Mapping[int, int],
) -> tuple[dict[int, int], dict[int, int]]:
    """What could stand lower without longer edges stands just above its first reader.

    Inputs do, and whatever hangs on little but is read late. What survives goes down in both drawings or in
    none; what was made goes down no further than what it comes from.
    """
    found = (dict(before), dict(after))
    readers = [_readers(side) for side in sides]
    operators = {each.key: each for side in sides for each in side}
    keys = sorted(operators, key=lambda key: -max(layer.get(key, -1) for layer in found))
    for is_made in (False, True):
        for key in keys:
            if (key not in before) != is_made:
                continue
            own = [(layer, reads[key]) for layer, reads in zip(found, readers, strict=True) if key in layer]
            if not all(read for _, read in own) or len({layer[key] for layer, _ in own}) > 1:
                continue
            num_inputs = sum(each in found[0] or each in found[1] for each in operators[key].inputs)
            if num_inputs > len(own[0][1]):
                continue
            lowest = min(layer[each] for layer, read in own for each in read) - 1
            if is_made:
                lowest = min(lowest, _lowest(found[0], drawing.origins[key]))
            for layer, _ in own:
                layer[key] = max(layer[key], lowest)
    return found


def _readers(side: Sequence[Operator]) -> dict[int, list[int]]:
    """Who reads the results of each operator."""
    found: dict[int, list[int]] = {each.key: [] for each in side}
    for each in side:
        for key in each.inputs:
            if key in found:
                found[key].append(each.key)
    return found


def overview(drawing: Drawing, layers: Layers) -> list[Band]:
    """The bands of a drawing that shows no more than what is worth looking at, in order."""
    before = {each.key for each in drawing.before.operators}
    after = {each.key for each in drawing.after.operators}
    rows: list[list[tuple[str, ...]]] = [[] for _ in range(layers.count)]
    for graph, layer, other in (
        (drawing.before, layers.before, after),
        (drawing.after, layers.after, before),
    ):
        for each in drawn(graph):
            state = "stays" if each.key in other else "gone" if other is after else "new"
            rows[layer[each.key]].append((state, each.op, *each.types))
    signatures = [tuple(sorted(row)) for row in rows]
    bands = _repeats(signatures, 0, layers.count)
    is_changed = [any(each[0] != "stays" for each in row) for row in rows]
    if any(is_changed):
        bands += [Band(first, end, "unchanged") for first, end in _quiet(is_changed, bands)]
    bands.sort(key=lambda band: band.first)
    return _cut(bands, [len(row) for row in rows])


def _repeats(signatures: Sequence[object], lo: int, hi: int) -> list[Band]:
    """The block that saves most, folded but for its first instance; then the same above it and below it."""
    best: tuple[int, int, int, int] | None = None  # saved layers, -period, first, end
    for period in range(1, min(_MAX_PERIOD, (hi - lo) // 2) + 1):
        run = 0
        for at in range(hi - period - 1, lo - 1, -1):
            run = run + 1 if signatures[at] == signatures[at + period] else 0
            saved = run // period * period
            if saved >= _MIN_FOLDED and (
                best is None or (saved, -period, -at) > (best[0], best[1], -best[2])
            ):
                best = (saved, -period, at, at + period + saved)
    if best is None:
        return []
    saved, minus, first, end = best
    times, period = saved // -minus, -minus
    what = "the layer above" if period == 1 else f"the {period} layers above"
    band = Band(first + period, end, f"{times} × {what}")
    return [*_repeats(signatures, lo, first), band, *_repeats(signatures, end, hi)]


def _quiet(is_changed: Sequence[bool], bands: Sequence[Band]) -> list[tuple[int, int]]:
    """Stretches without changes, outside of other bands."""
    count = len(is_changed)
    is_near = [any(is_changed[max(0, at - _MARGIN) : at + _MARGIN + 1]) for at in range(count)]
    for band in bands:
        is_near[band.first : band.end] = [True] * (band.end - band.first)
    found, first = [], None
    for at in range(count + 1):
        is_open = at < count and not is_near[at]
        if is_open and first is None:
            first = at
        if not is_open and first is not None:
            if at - first >= _MIN_FOLDED:
                found.append((first, at))
            first = None
    return found


def _cut(bands: Sequence[Band], sizes: Sequence[int]) -> list[Band]:
    """The bands, and one more for all that would make the drawing too large."""
    folded = {layer for band in bands for layer in range(band.first, band.end)}
    total = 0
    for layer, size in enumerate(sizes):
        total += 0 if layer in folded else size
        if total > 2 * _MAX_DRAWN:
            whole = [band for band in bands if band.end <= layer]
            return [*whole, Band(layer, len(sizes), "not drawn")]
    return list(bands)
