"""The rows of the tables of one graph: operators by time, lines of the user's program, counted work.

Rows are tuples in column order; the template formats the numbers. A pair of percentages at the end of a row
gives the lengths of its bars, before and after.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchrlopt.report.drawing import Drawing, DrawnGraph, Operator
from torchrlopt.report.page.words import amount, percent
from torchrlopt.report.parts import Contribution, Profile

_MAX_LINES = 25
_MAX_EXPENSIVE = 10
_MAX_PLACES = 3
_WORK = (
    ("Multiplications and additions", "flops", "flop"),
    ("Memory read and written", "bytes", "B"),
    ("Largest memory for results at one time", "peak_bytes", "B"),
    ("Kernels launched", "launches", ""),
)

Row = tuple[Any, ...]
Line = tuple[str, str, str]  # text, place, modules


def with_bars(rows: Sequence[Row], before: int | None, after: int) -> list[Row]:
    """Append the lengths of the bars to each row.

    Args:
        rows: without bars.
        before: column of the first bar; None if there is only one bar.
        after: column of the second.
    """
    pairs = [(0.0 if before is None else abs(row[before]), abs(row[after])) for row in rows]
    largest = max((each for pair in pairs for each in pair), default=0.0) or 1.0
    return [
        (*row, (100 * was / largest, 100 * now / largest))
        for row, (was, now) in zip(rows, pairs, strict=True)
    ]


def with_split_bars(split: Sequence[Contribution]) -> list[Row]:
    """Return each contribution with the lengths of its bars: a call without it, and with it."""
    rows = with_bars([(each, each.without_ms, each.with_ms) for each in split], 1, 2)
    return [(each, shares) for each, _, _, shares in rows]


def timed_calls(profile: Profile, drawing: Drawing) -> list[Row]:
    """Return the measured calls of a graph, the longest first, then all others, the rest and the whole.

    Rows are name, number of calls alike, measured time, its share, predicted time of the operators that they
    implement or None, place.
    """
    whole_us = profile.call_ms * 1e3 or 1.0
    rows: list[Row] = []
    for name, module, place, own in profile.alike():
        us, predicted_us = profile.us_of(own), _predicted_us(profile, own, drawing)
        rows.append((name, len(own), us, us / whole_us, predicted_us, f"{module} {place}".strip()))
    others = rows[_MAX_LINES:]
    if others:
        us = sum(row[2] for row in others)
        rows[_MAX_LINES:] = [("all other calls", sum(row[1] for row in others), us, us / whole_us, None, "")]
    everything = _predicted_us(profile, range(len(profile.calls)), drawing)
    rows.append((profile.rest_in_words, 0, profile.rest_us, profile.rest_us / whole_us, None, ""))
    return [*rows, ("a call", 0, whole_us, 1.0, everything, "")]


def _predicted_us(profile: Profile, calls: Iterable[int], drawing: Drawing) -> float | None:
    keys = {key for at in calls for key in profile.calls[at].keys} & drawing.after.prices.keys()
    return sum(drawing.after.prices[key].time_us for key in keys) if keys else None


def lines_of(keys: Iterable[int], drawing: Drawing) -> list[Line]:
    """Return the user's lines behind operators of either graph, each with the first of its modules."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for origin in dict.fromkeys(origin for key in keys for origin in drawing.origins.get(key, ())):
        if origin in drawing.sources:
            source = drawing.sources[origin]
            found.setdefault((source.text, source.place), {})[source.module] = None
    lines = []
    for (text, place), modules in found.items():
        known = [module for module in modules if module]
        more = f" and {len(known) - 1} more" if len(known) > 1 else ""
        lines.append((text, place, f"{known[0]}{more}" if known else ""))
    return lines


def by_kind(drawing: Drawing) -> list[Row]:
    """Return operator kinds by predicted time: name, counts and times before and after, bars; then sums."""
    before, after = _counted(drawing.before), _counted(drawing.after)
    nothing = (0, 0.0)
    rows: list[Row] = []
    for kind in {**before, **after}:
        (count, time_us), (count_after, time_after_us) = before.get(kind, nothing), after.get(kind, nothing)
        rows.append((kind, count, count_after, time_us, time_after_us))
    rows.sort(key=lambda row: -max(row[3:]))
    sums = [sum(column) for column in zip(*(row[1:] for row in rows), strict=True)] or [0, 0, 0.0, 0.0]
    return [*with_bars(rows, 3, 4), ("all", *sums, None)]


def _counted(graph: DrawnGraph) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for each in graph.operators:
        if each.key in graph.prices:
            count, time_us = found.get(each.op, (0, 0.0))
            found[each.op] = (count + 1, time_us + graph.prices[each.key].time_us)
    return found


def most_expensive(drawing: Drawing) -> tuple[list[Row], int]:
    """Return what takes most time after the plan, and how many kinds; those on the same lines are one.

    Rows are count, operator, types, time, share of the graph's time, whether it was measured, lines, lines
    left out, name.
    """
    prices = drawing.after.prices
    alike: defaultdict[tuple[object, ...], list[Operator]] = defaultdict(list)
    for each in drawing.after.operators:
        if each.key in prices:
            places = tuple(line[:2] for line in lines_of([each.key], drawing))
            alike[each.op, each.types, places].append(each)
    total = sum(price.time_us for price in prices.values()) or 1.0
    taken = {kind: sum(prices[each.key].time_us for each in own) for kind, own in alike.items()}
    rows: list[Row] = []
    for kind in sorted(alike, key=lambda kind: -taken[kind])[:_MAX_EXPENSIVE]:
        own = alike[kind]
        is_measured = all(prices[each.key].is_measured for each in own)
        lines = lines_of([each.key for each in own], drawing)
        shown, hidden = lines[:_MAX_PLACES], max(0, len(lines) - _MAX_PLACES)
        types = ", ".join(own[0].types)
        share = taken[kind] / total
        rows.append((len(own), own[0].op, types, taken[kind], share, is_measured, shown, hidden, own[0].name))
    return rows, len(alike)


def changed_lines(drawing: Drawing) -> tuple[list[Row], int]:
    """Return the user's lines whose operators changed, the most expensive first, and their number.

    The time of an operator that comes from several lines is divided in proportion to their times before. Rows
    are line, number of operators, time before and after, bars.
    """
    before, after = drawing.before.prices, drawing.after.prices
    line_of = {
        key: (source.text, source.place, "")
        for key, source in drawing.sources.items()
        if source.file and key in before
    }
    counts = Counter(line_of.values())
    survivors = {each.key for each in drawing.after.operators}
    changed = {line: None for key, line in line_of.items() if key not in survivors}
    before_us: defaultdict[Line, float] = defaultdict(float)
    for key, line in line_of.items():
        before_us[line] += before[key].time_us
    after_us = _shared_out(after, line_of, drawing)
    order = sorted(changed, key=lambda line: -before_us[line])
    rows = [(line, counts[line], before_us[line], after_us[line]) for line in order]
    return with_bars(rows, 2, 3)[:_MAX_LINES], len(rows)


def _shared_out(
    after: Mapping[int, Any], line_of: Mapping[int, Line], drawing: Drawing
) -> defaultdict[Line, float]:
    found: defaultdict[Line, float] = defaultdict(float)
    for key, price in after.items():
        origins = [each for each in drawing.origins.get(key, ()) if each in line_of]
        parts = [drawing.before.prices[each].time_us for each in origins]
        whole = sum(parts)
        for each, part in zip(origins, parts, strict=True):
            found[line_of[each]] += price.time_us * (part / whole if whole > 0 else 1 / len(parts))
    return found


def left_alone(drawing: Drawing) -> list[Row]:
    """Return the operators without a translation: name, lines, name in the graph."""
    return [
        (each.op, lines_of([each.key], drawing), each.name)
        for each in drawing.before.operators
        if each.is_opaque
    ][:_MAX_LINES]


def work(drawing: Drawing) -> list[Row]:
    """Return the cost model's counts for both graphs: description, before, after, change."""
    rows = []
    for text, name, unit in _WORK:
        was, now = drawing.before.work[name], drawing.after.work[name]
        rows.append((text, amount(was, unit), amount(now, unit), percent(now / was - 1) if was else ""))
    return rows
