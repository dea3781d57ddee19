"""Puts the page of a report together: one file that holds its style, its script and its data."""

from __future__ import annotations

from importlib import resources

from torchrlopt.report.drawing import Drawing
from torchrlopt.report.page import charts, tables
from torchrlopt.report.page.article import article, section
from torchrlopt.report.page.html import Html, element, join
from torchrlopt.report.page.words import error_in_words
from torchrlopt.report.report import Report

_MAX_GRAPHS = 6
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(report: Report, title: str = "") -> str:
    """The page of a report; see `Report.save`."""
    name = title or "torchrlopt"
    drawings = [record.draw() for record in report.records[:_MAX_GRAPHS]]
    graphs = []
    first = 0
    for number, drawing in enumerate(drawings):
        steps = report.steps[first : first + len(drawing.steps)]
        first += len(drawing.steps)
        graphs.append(article(number, drawing, steps, report, len(drawings)))
    head = join(
        element("title", f"{name}: {report.summary}"),
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("style", Html(_file("page.css"))),
    )
    body = join(
        element("header", _hero(report, name)),
        element("main", _overview(report, drawings), *graphs, _details(report, len(drawings))),
        element("script", Html(_file("page.js"))),
    )
    return f"<!DOCTYPE html>\n{element('html', element('head', head), element('body', body), lang='en')}\n"


def _file(name: str) -> str:
    return resources.files("torchrlopt.report.page").joinpath(name).read_text(encoding="utf-8")


def _hero(report: Report, name: str) -> Html:
    """The result in one sentence, and the numbers behind it."""
    reason = report.fallback_reason
    return join(
        element("p", name, class_="name"),
        element("h1", f"{report.summary[:1].upper()}{report.summary[1:]}"),
        element("p", f"Why: {reason}", class_="reason") if reason else None,
        element("div", *_tiles(report), class_="tiles"),
    )


def _tiles(report: Report) -> list[Html]:
    tiles = []
    before, after = report.measured_before_ms, report.measured_after_ms
    if before is not None and after is not None:
        spread = "" if report.measured_spread is None else f", spread {report.measured_spread:.0%}"
        busy = "" if report.measured_is_calm else "; the machine was busy"
        told = f"{before:.3f} → {after:.3f} ms {report.timed_part}{spread}{busy}"
        tiles.append(_tile("measured", f"{before / after:.2f}×", told, before, after))
    cost, cost_after = report.cost_before_ms, report.cost_after_ms
    if cost is not None and cost_after is not None:
        measured = report.measured_share or 0.0
        share = f"{measured:.0%} of it from measured prices" if measured else "all of it estimated"
        told = f"{cost:.3f} → {cost_after:.3f} ms, {share}"
        ratio = f"{cost / cost_after:.2f}×" if cost_after else "–"
        tiles.append(_tile("predicted", ratio, told, cost, cost_after))
    nodes, nodes_after = report.num_nodes_before, report.num_nodes_after
    if nodes:
        tiles.append(_tile("operators", f"{nodes_after}", f"instead of {nodes}", nodes, nodes_after))
    error = report.numerical_error
    sets = f"; {report.checked_sets} of {report.weight_sets} sets of weights checked"
    told = error_in_words(error) + (sets if report.weight_sets > 1 else "")
    if report.kept != "planned":
        tiles.append(_tile("exactness", "–" if error is None else f"{error:.2f}", told))
    if report.steps:
        tested = sum(step.proof not in ("proved", "") for step in report.steps)
        proof = f"{tested} of them tested only, the others proved" if tested else "all of them proved"
        known = any(step.proof for step in report.steps)
        tiles.append(_tile("plan", f"{len(report.steps)} steps", proof if known else ""))
    return tiles


def _tile(name: str, number: str, told: str, before: float = 0.0, after: float = 0.0) -> Html:
    largest = max(before, after)
    return element(
        "div",
        element("span", name, class_="label"),
        element("strong", number),
        charts.bars(before, after, largest) if largest else None,
        element("span", told, class_="told"),
        class_="tile",
    )


def _overview(report: Report, drawings: list[Drawing]) -> Html | None:
    if not report.steps:
        return None
    found = (element("p", f"{search.__str__()[:1].upper()}{str(search)[1:]}.") for search in report.searches)
    return section("What was done", tables.groups(report), *found)


def _details(report: Report, num_drawn: int) -> Html:
    notes = [("note", note) for note in report.notes]
    left = report.num_graphs - num_drawn
    if left > 0 and num_drawn:
        notes.append(("not drawn", f"{left} of {report.num_graphs} graphs"))
    if not num_drawn:
        notes.append(("graphs", "not in this report: it was read from a file, or no plan was made"))
    return section(
        "Details",
        tables.choices(report),
        tables.phases(report.phases_ms),
        tables.facts([*report.rows(), *notes]),
    )
