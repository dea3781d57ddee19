"""The tables of the page: groups of steps, operators by time, lines of the user's program, facts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from torchrlopt.report.drawing import Drawing, DrawnGraph, Operator, Source
from torchrlopt.report.page.charts import bars
from torchrlopt.report.page.html import Html, element, escaped, join, table
from torchrlopt.report.page.words import amount, change, milliseconds, percent, shortened, time_of
from torchrlopt.report.report import Report
from torchrlopt.report.steps import LeftOut

_MAX_LINES = 25
_MAX_DEAREST = 10
_MAX_CODE = 90
_MAX_PLACES = 3


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
        row: list[object] = [group.meaning, element("ul", *names, class_="names"), change(-group.saved_ms)]
        if report.left_out:
            row.append(join(*(_worth(each) for each in report.left_out if each.meaning == group.meaning)))
        rows.append([*row, bar])
    measured = ["without them, measured"] if report.left_out else []
    head = ["", "substitutions", "predicted", *measured, ""]
    return table("What the steps do", head, rows, {2, 3} if measured else {2})


def _worth(left_out: LeftOut) -> Html:
    """What the plan takes more without a group; a title says what was predicted of that."""
    told = f"{change(left_out.measured_ms)} ± {left_out.spread_ms:.3f}"
    return element("div", told, title=f"predicted: {change(left_out.predicted_ms)}")


def operators(drawing: Drawing) -> Html:
    """Kinds of operators by predicted time, before and after."""
    before, after = _by_kind(drawing.before), _by_kind(drawing.after)
    kinds = sorted(
        {*before, *after}, key=lambda kind: -max(before.get(kind, _NONE)[1], after.get(kind, _NONE)[1])
    )
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
    """The operators of the second graph that take most of its time; those of the same lines as one."""
    graph = drawing.after
    alike: dict[tuple[object, ...], list[Operator]] = {}
    for each in graph.operators:
        if each.key in graph.prices:
            places = tuple((source.place, source.text) for source in sources_of(each, drawing))
            alike.setdefault((each.op, each.types, places), []).append(each)
    total = sum(price.time_us for price in graph.prices.values()) or 1.0
    taken = {kind: sum(graph.prices[each.key].time_us for each in own) for kind, own in alike.items()}
    order = sorted(alike, key=lambda kind: -taken[kind])
    rows: list[list[object]] = []
    for kind in order[:_MAX_DEAREST]:
        own = alike[kind]
        are_measured = all(graph.prices[each.key].is_measured for each in own)
        rows.append(
            [
                join(f"{len(own)} × " if len(own) > 1 else None, element("code", own[0].op)),
                element("code", shortened(", ".join(own[0].types), 40), class_="whole"),
                time_of(taken[kind]),
                f"{taken[kind] / total:.1%}",
                "measured" if are_measured else "estimated",
                _lines_of(own, drawing),
            ]
        )
    left = f" ({_MAX_DEAREST} of {len(order)} kinds)" if len(order) > _MAX_DEAREST else ""
    return table(
        f"What takes most time after the plan{left}",
        ["operator", "result", "time", "share", "price", "from"],
        rows,
        {2, 3},
    )


def _lines_of(own: Sequence[Operator], drawing: Drawing) -> Html:
    """The lines behind operators of the same lines, and the modules of the first of them."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in own:
        for source in sources_of(each, drawing):
            found.setdefault((source.place, source.text), []).append(source.module)
    parts = []
    for (place, text), modules in list(found.items())[:_MAX_PLACES]:
        each_once = list(dict.fromkeys(filter(None, modules)))
        more = f" and {len(each_once) - 1} more" if len(each_once) > 1 else ""
        parts.append(_line(text, place, f"{''.join(each_once[:1])}{more}"))
    if len(found) > _MAX_PLACES:
        parts.append(element("small", f"and {len(found) - _MAX_PLACES} more lines", class_="place"))
    return join(*parts) if parts else escaped(own[0].name)


def sources_of(each: Operator, drawing: Drawing) -> list[Source]:
    """The user's lines behind an operator of either graph, each once."""
    found = (drawing.sources.get(key) for key in drawing.origins.get(each.key, ()))
    return list(dict.fromkeys(source for source in found if source is not None))


def _line(text: str, place: str, module: str) -> Html:
    """A line of the user's program."""
    code = element("code", shortened(text, _MAX_CODE), class_="source") if text else None
    where = " in ".join(each for each in (place, module) if each)
    return element("div", code, element("small", where, class_="place"), class_="line")


_Line = tuple[str, str]  # where it stands, and its text


def lines(drawing: Drawing) -> Html | None:
    """The user's lines whose operators changed, by what they took; None where none is known.

    The time of an operator that comes from several lines is shared out by what these took before.
    """
    after = {each.key for each in drawing.after.operators}
    before_us: defaultdict[_Line, float] = defaultdict(float)
    after_us: defaultdict[_Line, float] = defaultdict(float)
    counts: Counter[_Line] = Counter()
    changed: set[_Line] = set()
    line_of = {key: (source.place, source.text) for key, source in drawing.sources.items() if source.file}
    for key, price in drawing.before.prices.items():
        if key in line_of:
            counts[line_of[key]] += 1
            before_us[line_of[key]] += price.time_us
            if key not in after:
                changed.add(line_of[key])
    for key, price in drawing.after.prices.items():
        parts = {
            each: drawing.before.prices[each].time_us
            for each in drawing.origins.get(key, ())
            if each in line_of and each in drawing.before.prices
        }
        whole = sum(parts.values())
        for each, part in parts.items():
            after_us[line_of[each]] += price.time_us * (part / whole if whole > 0 else 1 / len(parts))
    order = sorted(changed, key=lambda line: -before_us[line])
    if not order:
        return None
    largest = max(max(before_us[line], after_us[line]) for line in order)
    rows: list[list[object]] = [
        [
            _line(text, place, ""),
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
    return table(caption, ["line", "operators", "time before", "time after", ""], rows, {1, 2, 3})


def left_alone(drawing: Drawing) -> Html | None:
    """The user's lines behind operators without a translation; None where there are none."""
    rows: list[list[object]] = []
    for each in drawing.before.operators:
        if each.is_opaque:
            found = sources_of(each, drawing)
            told = join(*(_line(source.text, source.place, source.module) for source in found))
            rows.append([element("code", each.op), told if found else each.name])
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
        more = percent(now / was - 1) if was else ""
        rows.append([told, amount(was, unit), amount(now, unit), more])
    return table("Work and memory of a call, estimated", ["", "before", "after", ""], rows, {1, 2, 3})


def facts(rows: Iterable[tuple[str, str]]) -> Html:
    """Names and texts."""
    pairs = (join(element("dt", name.strip()), element("dd", text)) for name, text in rows)
    return element("dl", *pairs)


def choices(report: Report) -> Html | None:
    """Executors that were tried; None where there was one."""
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
