"""Renders the page of a report from templates: one file with its style, scripts and data."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from torchrlopt.report.drawing import Drawing
from torchrlopt.report.page import charts, tables, words
from torchrlopt.report.page.graph import picture
from torchrlopt.report.parts import Profile
from torchrlopt.report.report import Report
from torchrlopt.report.steps import ReportStep

_MAX_GRAPHS = 6
_SCRIPTS = ("vendor/d3-dag.min.js", "page.js")


def page(report: Report, title: str = "") -> str:
    """Return the page of a report; see `Report.save`."""
    environment = Environment(
        loader=PackageLoader("torchrlopt.report.page", "."),
        autoescape=True,  # names come from untrusted files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (words.time_of, words.milliseconds, words.change, words.shortened):
        environment.filters[function.__name__] = function
    environment.globals.update(charts=charts, error_in_words=words.error_in_words)
    scripts = [_file(name) for name in _SCRIPTS]
    return environment.get_template("page.html.j2").render(
        name=title or "torchrlopt",
        report=report,
        graphs=_graphs(report),
        groups=_groups(report),
        split=tables.with_split_bars(report.contributions),
        phases=tables.with_bars(list(report.phases_ms.items()), None, 1),
        style=_file("page.css"),
        scripts=scripts,
        # Allow only this package's scripts to run, even if some text were not escaped.
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
    )


def _file(name: str) -> Markup:
    return Markup(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _graphs(report: Report) -> list[dict[str, Any]]:
    graphs = []
    first = 0
    for number, record in enumerate(report.records[:_MAX_GRAPHS]):
        drawing = record.draw()
        steps = report.steps[first : first + len(drawing.steps)]
        first += len(drawing.steps)
        # The cost of a report is the sum over its graphs.
        start = report.cost_before_ms if len(report.records) == 1 else None
        search = report.searches[number].curve if number < len(report.searches) else ()
        own = report.plans[number]["graph_hash"] if number < len(report.plans) else ""
        profile = next((each for each in report.profiles if own and each.graph_hash == own), None)
        # With a budget there is one record for each graph.
        types = dict(report.precision[number].types) if len(report.precision) == len(report.records) else {}
        graphs.append({**_graph(drawing, steps, start, search, types), "profile": _profile(profile, drawing)})
    return graphs


def _graph(
    drawing: Drawing,
    steps: tuple[ReportStep, ...],
    start_ms: float | None,
    search: tuple[tuple[float, float], ...],
    types: dict[int, str],
) -> dict[str, Any]:
    walk = None
    if steps:
        start = steps[0].cost_ms + steps[0].saved_ms if start_ms is None else start_ms
        walk = charts.curve([(0, start), *((at, step.cost_ms) for at, step in enumerate(steps, 1))])
    return {
        "drawing": drawing,
        "picture": picture(drawing, steps, types),
        "types": sorted(set(types.values())),
        "steps": list(enumerate(steps, 1)),
        "walk": walk,
        # A search that found only one plan has no curve.
        "search": charts.curve(search) if len({cost_ms for _, cost_ms in search}) > 2 else None,
        "by_kind": tables.by_kind(drawing),
        "most_expensive": tables.most_expensive(drawing),
        "work": tables.work(drawing),
        "lines": tables.changed_lines(drawing),
        "left_alone": tables.left_alone(drawing),
    }


def _profile(profile: Profile | None, drawing: Drawing) -> dict[str, Any] | None:
    if profile is None:
        return None
    return {"of": profile, "calls": tables.timed_calls(profile, drawing)}


def _groups(report: Report) -> list[tables.Row]:
    """Group the steps: meaning, substitutions, predicted saving, measurements without them, bars."""
    proofs = {step.substitution: step.proof for step in report.steps}
    rows = [
        (
            group.meaning,
            [(count, name, proofs.get(name, "")) for name, count in group.counts.items()],
            group.saved_ms,
            [each for each in report.left_out if each.meaning == group.meaning],
        )
        for group in report.step_groups()
    ]
    return tables.with_bars(rows, None, 2)
