"""The data of one graph for the page's script: operators, bands of the overview, steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchrlopt.report.drawing import Drawing, DrawnStep, Operator, Price
from torchrlopt.report.page.layers import Band, Rows, bands_of, drawn, layers, rows_of
from torchrlopt.report.page.tables import lines_of
from torchrlopt.report.page.words import change, milliseconds, shortened, time_of
from torchrlopt.report.steps import ReportStep, meaning_of

_MAX_WHOLE = 1600  # most operators of both graphs that the page offers to draw one by one
_MAX_LABEL = 26
_MAX_TYPE = 34
_MAX_LINES = 6

Box = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Picture:
    """The drawing of one graph.

    Attributes:
        data: for the script.
        total: operators of both graphs.
        folded: how many of them the overview folds into bands.
        is_whole: whether the page offers to draw all of them.
        once: operators on weights, which are not drawn.
    """

    data: dict[str, Any]
    total: int
    folded: int
    is_whole: bool
    once: int


def picture(drawing: Drawing, steps: Sequence[ReportStep], types: Mapping[int, str]) -> Picture:
    """Return everything that is drawn of a graph; `types` as in `PrecisionRecord`, by key."""
    rows = rows_of(drawing)
    bands = bands_of(drawing, rows)
    minis, walked = _walked(drawing, steps)
    inside = {row for band in bands for row in range(band.first, band.end)}
    total = len(drawing.before.prices) + len(drawing.after.prices)
    data = {
        "ops": _boxes(drawing, rows, types),
        "rows": rows.count,
        "bands": [_band(band, drawing, rows) for band in bands],
        "steps": walked,
        "minis": minis,
    }
    return Picture(
        data,
        total,
        sum(row in inside for side in (rows.before, rows.after) for row in side.values()),
        bool(bands) and total <= _MAX_WHOLE,
        sum(each.is_static and not each.is_leaf for each in drawing.after.operators),
    )


def _band(band: Band, drawing: Drawing, rows: Rows) -> dict[str, Any]:
    """Describe a band and its contents on either side; None for an empty side."""
    labels = {}
    for side, graph, row in (("b", drawing.before, rows.before), ("a", drawing.after, rows.after)):
        own = [each for each in drawn(graph) if band.first <= row[each.key] < band.end]
        count = sum(not each.is_leaf for each in own)
        time_us = sum(graph.prices[each.key].time_us for each in own if each.key in graph.prices)
        labels[side] = f"{count} operator{'s' * (count != 1)}, {time_of(time_us)}" if own else None
    return {**band._asdict(), **labels}


def _boxes(drawing: Drawing, rows: Rows, types: Mapping[int, str]) -> dict[str, Box]:
    """Return the boxes of both graphs' operators, by "b" or "a" and their key."""
    both = {each.key for each in drawing.before.operators} & {each.key for each in drawing.after.operators}
    prices = (*drawing.before.prices.values(), *drawing.after.prices.values())
    largest = max((price.time_us for price in prices), default=0.0) or 1.0
    found = {}
    for side, graph, row in (("b", drawing.before, rows.before), ("a", drawing.after, rows.after)):
        by_key = {each.key: each for each in graph.operators}
        changed = "gone" if side == "b" else "new"
        for each in drawn(graph):
            kind = "leaf" if each.is_leaf else "stays" if each.key in both else changed
            price, low = graph.prices.get(each.key), types.get(each.key, "") if side == "a" else ""
            inputs = [by_key[key] for key in each.inputs if key in by_key]
            found[f"{side}{each.key}"] = {
                **_box(each, kind, drawing.labels.get(each.key, each.name)),
                "row": row[each.key],
                "reads": [f"{side}{one.key}" for one in inputs if one.key in row],
                "is_output": each.key in graph.outputs,
                "op": each.op,
                "time": time_of(price.time_us) if price else "",
                "share": round(price.time_us / largest, 3) if price else 0,
                "low": low,
                "facts": _facts(each, price, [_weight(one, drawing) for one in inputs if one.is_static], low),
                "lines": _lines([each.key], drawing),
                "origins": list(drawing.origins.get(each.key, ())) if side == "a" else [],
            }
    return found


def _box(each: Operator, kind: str, name: str) -> Box:
    """Return the text of a box; a leaf has only one line."""
    types = each.types[0] if each.types else ""
    if each.is_leaf:
        return {"kind": kind, "label": f"{shortened(name, _MAX_LABEL)} {types}".strip(), "small": ""}
    label = each.op.removeprefix("aten.")
    more = f" +{len(each.types) - 1}" if len(each.types) > 1 else ""
    return {
        "kind": kind,
        "label": shortened(label, _MAX_LABEL),
        "small": f"{shortened(types, _MAX_TYPE)}{more}",
    }


def _facts(each: Operator, price: Price | None, weights: list[str], low: str) -> list[tuple[str, str]]:
    """Return what the page shows about a selected operator."""
    time = f"{time_of(price.time_us)}, {'measured' if price.is_measured else 'estimated'}" if price else ""
    facts = (
        ("result", ", ".join(each.types)),
        ("set to", each.attributes),
        ("computed in", low),
        ("time", time),
        ("weights", "; ".join(weights)),
        ("name", each.name),
    )
    return [(name, text) for name, text in facts if text]


def _lines(keys: Iterable[int], drawing: Drawing) -> list[tuple[str, str]]:
    """Return the user's source lines behind operators, and their places."""
    return [
        (text, " in ".join(filter(None, (place, module))))
        for text, place, module in lines_of(keys, drawing)[:_MAX_LINES]
    ]


def _weight(each: Operator, drawing: Drawing) -> str:
    """Describe an operand that is known before a call."""
    types = ", ".join(each.types)
    return (
        f"{drawing.labels.get(each.key, '')} {types}".strip() if each.is_leaf else f"{types} (computed once)"
    )


def _walked(
    drawing: Drawing, steps: Sequence[ReportStep]
) -> tuple[list[list[list[Box]]], list[dict[str, Any]]]:
    """Return drawings of the steps, each distinct one once, and the page's data about each step."""
    ends = _ends(drawing)
    minis: list[list[list[Box]]] = []
    known: dict[str, int] = {}
    walked = []
    for number, (step, priced) in enumerate(zip(drawing.steps, steps, strict=True)):
        before = sorted({key for each in step.removed for key in drawing.origins[each.key]})
        after = sorted({key for each in step.added for key in ends[number].get(each.key, ())})
        mini = _mini(step)
        at = known.setdefault(repr(mini), len(minis))
        minis += [mini] * (at == len(minis))
        walked.append(
            {
                "name": step.substitution,
                "says": step.meaning,
                "proof": step.proof,
                "group": meaning_of(priced.family),
                "saved": change(-priced.saved_ms),
                "cost": milliseconds(priced.cost_ms),
                "before": before,
                "after": after,
                "lines": _lines(before, drawing),
                "mini": at,
            }
        )
    return minis, walked


def _ends(drawing: Drawing) -> list[dict[int, set[int]]]:
    """For each step, map each operator that it made to those of the last graph that it has become."""
    ends: list[dict[int, set[int]]] = []
    later = {key: {key} for key in drawing.after.prices}
    for step in reversed(drawing.steps):
        made = {each.key: later.get(each.key, set()) for each in step.added}
        ends.append(made)
        everything = set().union(*made.values())
        later |= {each.key: everything for each in step.removed}
    return ends[::-1]


def _mini(step: DrawnStep) -> list[list[Box]]:
    """Draw what one step removed and added."""
    return [
        _part(step, step.removed, step.read_before, "gone"),
        _part(step, step.added, step.read_after, "new"),
    ]


def _part(step: DrawnStep, operators: Iterable[Operator], read: Sequence[int], kind: str) -> list[Box]:
    own = {each.key: each for each in operators}
    used = dict.fromkeys(key for each in own.values() for key in each.inputs)
    outside = {key: step.around[key] for key in (*used, *read) if key in step.around and key not in own}
    # Renumber the keys of a step, so that equal steps have equal drawings.
    number = {key: at for at, key in enumerate((*outside, *own))}
    boxes: list[Box] = [
        {"kind": "leaf", "label": _outside(each), "small": "", "key": number[key], "reads": []}
        for key, each in outside.items()
    ]
    for key, each in own.items():
        reads = [number[one] for one in each.inputs if one in number]
        style = f"{kind} once" if each.is_static else kind
        boxes.append({**_box(each, style, each.op.lower()), "key": number[key], "reads": reads})
    readers = [number[key] for key in read if key in number]
    rest = {"kind": "leaf", "label": "rest of the graph", "small": ""}
    boxes += [{**rest, "key": len(number) + at, "reads": [key]} for at, key in enumerate(readers)]
    row: dict[int, int] = layers({box["key"]: box["reads"] for box in boxes})
    return [{**box, "row": row[box["key"]]} for box in boxes]


def _outside(each: Operator) -> str:
    """Label an operator that a step reads, or that reads it."""
    name = each.op.lower() if each.is_leaf else each.op.removeprefix("aten.")
    return " ".join((name, *each.types[:1]))
