"""The tables of the page: groups of steps, operators by time, lines of the user's program, facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torchrlopt.report.drawing import DrawnGraph, Drawing, Operator, Source
from torchrlopt.report.page.charts import bars
from torchrlopt.report.page.html import Html, element, join, table
from torchrlopt.report.page.words import amount, milliseconds, shortened, time_of
from torchrlopt.report.report import Report

_MAX_LINES = 25
_MAX_DEAREST = 15
_MAX_CODE = 90


def proof_mark(proof: str) -> Html | None:
    """A mark for what is not proved."""
    if proof in ("proved", ""):
        return None
    told = {"tested": "tested only"}.get(proof, proof)
    return element(
        "span", told, class_="mark", title="compared on random instances; Z3 found no proof that it is right"
    )


def groups(report: Report) -> Html:
    """The steps by what they mean."""
    found = report.step_groups()
    proofs = {step.substitution: step.proof for step in report.steps}
    largest = max((abs(group.saved_ms) for group in found), default=0.0)
    rows: list[list[object]] = []
    for group in found:
        names = [
            element("li", f"{count} × ", element("code", name), " ", proof_mark(proofs.get(name, "")))
            for name, count in group.counts.items()
        ]
        share = 100 * abs(group.saved_ms) / largest if largest > 0 else 0.0
        bar = element("span", element("i", class_="now", style=f"width:{share:.1f}%"), class_="bars")
        saved = f"{-group.saved_ms:+.3f} ms" if abs(group.saved_ms) >= 0.0005 else "±0"
        rows.append([group.meaning, element("ul", *names, class_="names"), saved, bar])
    return table("What the steps do", ["", "substitutions", "predicted", ""], rows, {2})


def operators(drawing: Drawing) -> Html:
    """Kinds of operators by predicted time, before and after."""
    before, after = _by_kind(drawing.before), _by_kind(drawing.after)
    kinds = sorted({*before, *after}, key=lambda kind: -max(before.get(kind, _NONE)[1], after.get(kind, _NONE)[1]))
    largest = max((each[1] for side in (before, after) for each in side.values()), default=0.0)
    rows: list[list[object]] = []
    for kind in kinds:
        (count, time_us), (count_after, time_after_us) = before.get(kind, _NONE), after.get(kind, _NONE)
        rows.append(
            [
                element("code", kind),
                count,
                count_after,
                time_of(time_us) if count else "–",
                time_of(time_after_us) if count_after else "–",
                bars(time_us, time_after_us, largest),
            ]
        )
    totals = [sum(each[1] for each in side.values()) for side in (before, after)]
    counts = [sum(each[0] for each in side.values()) for side in (before, after)]
    rows.append([element("b", "all"), *counts, *map(time_of, totals), ""])
    return table(
        "Operators by predicted time",
        ["operator", "before", "after", "time before", "time after", ""],
        rows,
        {1, 2, 3, 4},
    )


_NONE = (0, 0.0)


def _by_kind(graph: DrawnGraph) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for each in graph.operators:
        if each.key in graph.prices:
            count, time_us = found.get(each.op, _NONE)
            found[each.op] = (count + 1, time_us + graph.prices[each.key].time_us)
    return found


def dearest(drawing: Drawing) -> Html:
    """The operators of the second graph that take most of its time."""
    graph = drawing.after
    by_key = {each.key: each for each in graph.operators}
    keys = sorted(graph.prices, key=lambda key: -graph.prices[key].time_us)[:_MAX_DEAREST]
    total = sum(price.time_us for price in graph.prices.values()) or 1.0
    rows: list[list[object]] = []
    for key in keys:
        each, price = by_key[key], graph.prices[key]
        lines = sources_of(each, drawing)
        rows.append(
            [
                element("code", each.op),
                shortened(", ".join(each.types), 40),
                time_of(price.time_us),
                f"{price.time_us / total:.1%}",
                "measured" if price.is_measured else "estimated",
                join(*(_line(source) for source in lines[:2])) if lines else each.name,
            ]
        )
    return table(
        "The dearest operators after the plan",
        ["operator", "result", "time", "share", "price", "from"],
        rows,
        {2, 3},
    )


def sources_of(each: Operator, drawing: Drawing) -> list[Source]:
    """The user's lines behind an operator of either graph, each once."""
    found = (drawing.sources.get(key) for key in drawing.origins.get(each.key, ()))
    return list(dict.fromkeys(source for source in found if source is not None))


def _line(source: Source) -> Html:
    """A line of the user's program."""
    code = element("code", shortened(source.text, _MAX_CODE), class_="source") if source.text else None
    place = " in ".join(text for text in (source.place, source.module) if text)
    return element("div", code, element("small", place, class_="place"), class_="line")


def lines(drawing: Drawing) -> Html | None:
    """The user's lines whose operators changed, by what they took; None where none is known."""
    after = {each.key for each in drawing.after.operators}
    before_us: Counter[tuple[str, str]] = Counter()
    after_us: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    changed: set[tuple[str, str]] = set()
    for each in drawing.before.operators:
        source = drawing.sources.get(each.key)
        if source is None or each.key not in drawing.before.prices:
            continue
        line = (source.place, source.text)
        counts[line] += 1
        before_us[line] += drawing.before.prices[each.key].time_us  # type: ignore[assignment]  # times
        if each.key not in after:
            changed.add(line)
    for each in drawing.after.operators:
        found = {(source.place, source.text) for source in sources_of(each, drawing)}
        for line in found if each.key in drawing.after.prices else ():
            after_us[line] += drawing.after.prices[each.key].time_us / len(found)  # type: ignore[assignment]
    order = sorted(changed, key=lambda line: -before_us[line])
    if not order:
        return None
    largest = max(max(before_us[line], after_us[line]) for line in order)
    rows: list[list[object]] = [
        [
            element("div", element("code", shortened(text, _MAX_CODE), class_="source"), class_="line"),
            element("small", place, class_="place"),
            counts[place, text],
            time_of(before_us[place, text]),
            time_of(after_us[place, text]),
            bars(before_us[place, text], after_us[place, text], largest),
        ]
        for place, text in order[:_MAX_LINES]
    ]
    caption = "Your lines that run otherwise now"
    if len(order) > _MAX_LINES:
        caption += f" (the {_MAX_LINES} dearest of {len(order)})"
    return table(caption, ["line", "where", "operators", "time before", "time after", ""], rows, {2, 3, 4})


def left_alone(drawing: Drawing, opaque: Sequence[str]) -> Html | None:
    """The user's lines behind operators without a translation; None where there are none."""
    rows: list[list[object]] = []
    for each in drawing.before.operators:
        if each.op in opaque and each.key in drawing.before.prices:
            found = sources_of(each, drawing)
            rows.append([element("code", each.op), join(*map(_line, found)) if found else each.name])
    if not rows:
        return None
    return table("Left as they are: no translation", ["operator", "from"], rows[:_MAX_LINES])


def work(drawing: Drawing) -> Html:
    """What the cost model counts of both graphs."""
    units = (
        ("Multiplications and additions", "flops", "flop"),
        ("Memory read and written", "bytes", "B"),
        ("Largest memory for results at one time", "peak_bytes", "B"),
        ("Kernels launched", "launches", ""),
    )
    rows: list[list[object]] = []
    for told, name, unit in units:
        was, now = drawing.before.work[name], drawing.after.work[name]
        change = f"{now / was - 1:+.0%}" if was else ""
        rows.append([told, amount(was, unit), amount(now, unit), change])
    return table("Work and memory of a call, estimated", ["", "before", "after", ""], rows, {1, 2, 3})


def facts(rows: Iterable[tuple[str, str]]) -> Html:
    """Names and texts."""
    pairs = (join(element("dt", name.strip()), element("dd", text)) for name, text in rows)
    return element("dl", *pairs)


def choices(report: Report) -> Html | None:
    """What `executor="auto"` chose from; None where it did not."""
    if not report.choices:
        return None
    rows: list[list[object]] = [
        [
            choice.executor,
            choice.searcher,
            "" if choice.ratio is None else f"{1 / choice.ratio:.2f}×",
            f"{choice.seconds:.1f} s",
            choice.reason or "",
        ]
        for choice in report.choices
    ]
    return table(
        "Executors that were tried", ["executor", "plan of", "speed", "took", "why not"], rows, {2, 3}
    )


def phases(times_ms: Mapping[str, float]) -> Html | None:
    """Where the time of the compilation went; None where nothing was timed."""
    if not times_ms:
        return None
    largest = max(times_ms.values())
    rows: list[list[object]] = [
        [name, milliseconds(ms), bars(0.0, ms, largest)] for name, ms in times_ms.items()
    ]
    return table("What compiling took", ["phase", "time", ""], rows, {1})
