"""What the page says of one graph: where the time goes, both drawings, the steps, the user's lines."""

from __future__ import annotations

from typing import Any

from torchrlopt.report.drawing import Drawing, Operator, Source
from torchrlopt.report.page import charts, tables
from torchrlopt.report.page.html import Html, data, element, join, table
from torchrlopt.report.page.layers import layers_of, overview
from torchrlopt.report.page.picture import Side, mini, sides
from torchrlopt.report.page.words import change, milliseconds, time_of
from torchrlopt.report.report import Report
from torchrlopt.report.steps import ReportStep, meaning_of

_MAX_FULL = 1600  # operators of both graphs that are drawn one by one


def section(heading: str, *children: object) -> Html:
    """A part of the page under a heading."""
    return element("section", element("h2", heading), *children)


def article(number: int, drawing: Drawing, steps: tuple[ReportStep, ...], report: Report, count: int) -> Html:
    """All about one graph."""
    of = f" (graph {number + 1} of {count})" if count > 1 else ""
    minis, walked = _walked(drawing, steps)
    picture, folded = _picture(number, drawing)
    shown = {
        "ops": _ops(drawing),
        "sources": [[each.place, each.text, each.module] for each in _unique_sources(drawing)],
        "folded": folded,
        "steps": walked,
    }
    search = report.searches[number] if number < len(report.searches) else None
    first = report.cost_before_ms if count == 1 else None
    return element(
        "article",
        section(f"Before and after{of}", picture),
        section(f"Step by step{of}", _walk(number, drawing, steps, minis, first)) if steps else None,
        _searched(search.curve, of) if search is not None else None,
        section(f"Where the time goes{of}", *_times(drawing)),
        _lines(drawing, of),
        data(f"data{number}", shown),
        class_="of-graph",
        data_graph=number,
    )


def _times(drawing: Drawing) -> list[Html]:
    return [tables.operators(drawing), tables.dearest(drawing), tables.work(drawing)]


def _lines(drawing: Drawing, of: str) -> Html | None:
    found = [each for each in (tables.lines(drawing), tables.left_alone(drawing)) if each]
    return section(f"In your program{of}", *found) if found else None


def _searched(points: tuple[tuple[float, float], ...], of: str) -> Html | None:
    """The curve of a search that found something more than once."""
    if len({cost_ms for _, cost_ms in points}) < 3:
        return None
    return section(
        f"The search{of}", charts.curve(points, "s", "predicted time of the best plan as the search went on")
    )


def _picture(number: int, drawing: Drawing) -> tuple[Html, dict[str, list[int]]]:
    """Both graphs side by side: the overview, and where they are not too large all operators."""
    layers = layers_of(drawing)
    bands = overview(drawing, layers)
    pair = sides(drawing, layers, bands)
    total = len(drawing.before.prices) + len(drawing.after.prices)
    whole = sides(drawing, layers, []) if bands and total <= _MAX_FULL else None
    left_out = sum(len(keys) for side in pair for keys in side.folded.values())
    note = ""
    if bands:
        note = f"{left_out} of {total} operators stand in folded boxes, which say what they hold. "
    if bands and whole is None:
        note += "The graphs are too large to be drawn in full; save_dir leaves both as .onnx files. "
    once = sum(each.is_static and not each.is_leaf for each in drawing.after.operators)
    if once:
        note += f"{once} operators on weights, evaluated once for each set of weights, are not drawn. "
    note += "Bars are as long as the predicted time; outputs of the graph have a bold frame. "
    note += "Click an operator to see what became of it."
    controls = element(
        "div",
        _button("zoom-in", "+", "larger"),
        _button("zoom-out", "−", "smaller"),
        _button("fit", "fit", "fit to the width"),
        _button("whole", "all operators", "draw every operator", aria_pressed="false") if whole else None,
        element(
            "span",
            _key("stays", "unchanged"),
            _key("gone", "taken away"),
            _key("new", "made by the plan"),
            class_="legend",
        ),
        class_="controls",
    )
    panels = element(
        "div",
        _panel("Before", pair[0], whole and whole[0]),
        _panel("After", pair[1], whole and whole[1]),
        class_="panels",
    )
    details = element("div", "Nothing chosen.", class_="details", role="status", aria_live="polite")
    folded = {**pair[0].folded, **pair[1].folded}
    return join(controls, panels, details, element("p", note, class_="note")), folded


def _panel(name: str, side: Side, whole: Side | None) -> Html:
    content = element("div", side.svg, class_="canvas", tabindex="0", role="region", aria_label=name)
    template = element("template", whole.svg) if whole is not None else None
    return element("figure", element("figcaption", name), content, template, class_="panel")


def _button(action: str, text: str, told: str, **attributes: str) -> Html:
    return element("button", text, type="button", data_do=action, title=told, **attributes)


def _key(kind: str, text: str) -> Html:
    return element("span", element("i", class_=f"swatch {kind}"), text)


def _ops(drawing: Drawing) -> dict[str, list[Any]]:
    """What the page tells of each operator, by the key of its box."""
    numbers = {source: at for at, source in enumerate(_unique_sources(drawing))}
    found = {}
    for side, graph in (("b", drawing.before), ("a", drawing.after)):
        by_key = {each.key: each for each in graph.operators}
        for each in graph.operators:
            if each.is_static or each.op == "Constant":
                continue
            price = graph.prices.get(each.key)
            weights = [by_key[key] for key in each.inputs if key in by_key and by_key[key].is_static]
            found[f"{side}{each.key}"] = [
                each.op,
                each.attributes,
                ", ".join(each.types),
                each.name,
                time_of(price.time_us) if price else "",
                bool(price and price.is_measured),
                [numbers[source] for source in tables.sources_of(each, drawing)][:12],
                [_weight(each, drawing) for each in weights],
                list(drawing.origins.get(each.key, ())) if side == "a" else [],
            ]
    return found


def _weight(each: Operator, drawing: Drawing) -> str:
    """An operand that is known before a call."""
    types = ", ".join(each.types)
    if not each.is_leaf:
        return f"{types} (computed once)"
    return f"{drawing.labels.get(each.key, '')} {types}".strip()


def _unique_sources(drawing: Drawing) -> list[Source]:
    return list(dict.fromkeys(drawing.sources.values()))


def _walked(drawing: Drawing, steps: tuple[ReportStep, ...]) -> tuple[list[Html], list[dict[str, Any]]]:
    """Drawings of the steps, each kind once, and what the page tells of each step."""
    ends = _ends(drawing)
    order = {source: at for at, source in enumerate(_unique_sources(drawing))}
    minis: dict[Html, int] = {}
    told = []
    for number, (step, priced) in enumerate(zip(drawing.steps, steps, strict=True)):
        before = sorted({key for each in step.removed for key in drawing.origins[each.key]})
        after = sorted({key for each in step.added for key in ends[number].get(each.key, ())})
        lines = dict.fromkeys(drawing.sources[key] for key in before if key in drawing.sources)
        told.append(
            {
                "name": step.substitution,
                "says": step.meaning,
                "proof": step.proof,
                "group": meaning_of(priced.family),
                "saved": change(-priced.saved_ms),
                "cost": milliseconds(priced.cost_ms),
                "before": before,
                "after": after,
                "sources": [order[source] for source in lines][:12],
                "mini": minis.setdefault(mini(step), len(minis)),
            }
        )
    return list(minis), told


def _ends(drawing: Drawing) -> list[dict[int, set[int]]]:
    """For each step: which operators of the last graph each of those that it made has become."""
    final = {each.key for each in drawing.after.operators if each.key in drawing.after.prices}
    ends: list[dict[int, set[int]]] = []
    later: dict[int, set[int]] = {key: {key} for key in final}
    for step in reversed(drawing.steps):
        made = {each.key: later.get(each.key, set()) for each in step.added}
        ends.append(made)
        everything = set().union(*made.values())
        later |= {each.key: everything for each in step.removed}
    return ends[::-1]


def _walk(
    number: int, drawing: Drawing, steps: tuple[ReportStep, ...], minis: list[Html], first_ms: float | None
) -> Html:
    """The curve of costs, the step that is shown, and the list of all."""
    start = first_ms if first_ms is not None else steps[0].cost_ms + steps[0].saved_ms
    points = [(0.0, start), *((float(at), step.cost_ms) for at, step in enumerate(steps, 1))]
    chart = charts.curve(points, "", "predicted time after each step of the plan", f"curve{number}")
    controls = element(
        "div",
        _button("previous", "←", "the step before"),
        element("input", type="range", min=1, max=len(steps), value=1, aria_label="step", data_do="step"),
        _button("next", "→", "the step after"),
        _button("play", "play", "walk through the steps"),
        class_="controls walk",
    )
    rows: list[list[object]] = [
        [
            at,
            join(element("code", step.substitution), " ", tables.proof_mark(step.proof)),
            change(-step.saved_ms),
            milliseconds(step.cost_ms),
        ]
        for at, step in enumerate(steps, 1)
    ]
    listed = table("All steps", ["step", "substitution", "predicted", "time after it"], rows, {0, 2, 3})
    return join(
        element("p", "Predicted time of the graph after each step of the plan."),
        chart,
        controls,
        element("div", class_="step", aria_live="polite"),
        *(element("template", each, class_="mini-of") for each in minis),
        element("details", element("summary", f"All {len(steps)} steps"), listed),
    )
