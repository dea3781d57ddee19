"""The page of a report: well-formed, self-contained, escaped, and consistent with the report."""

from __future__ import annotations

import dataclasses
import random
import re
from importlib import resources
from pathlib import Path

import pytest

from tests.report.page_cases import CONVOLUTION, Page, blocks, report_of
from torchrlopt.report import Choice, Drawing, Report, SearchRecord, Source, Status
from torchrlopt.report.page.words import time_of
from torchrlopt.report.parts import Contribution, Profile, TimedCall

PAGE = "torchrlopt.report.page"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\">&amp;<!--"


def saved(report: Report, tmp_path: Path, title: str = "") -> str:
    report.save(tmp_path / "page.html", title)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def report() -> Report:
    sources = {
        "c": Source("package/net.py", 7, "y = self.conv(x)", "stem.conv"),
        "n": Source("package/net.py", 7, "y = self.norm(y)", "stem.norm"),
        "t": Source("package/net.py", 9, "return y.movedim(1, -1)", ""),
    }
    return report_of(CONVOLUTION, sources)


def test_it_is_well_formed_and_needs_nothing_else(report: Report, tmp_path: Path) -> None:
    html = saved(report, tmp_path, "net")
    page = Page(html)
    assert html.startswith("<!DOCTYPE html>\n<html")
    names = {each.name for each in page.elements}
    assert names.isdisjoint({"link", "img", "iframe", "object", "embed", "base", "form"})
    for each in page.elements:
        assert {"src", "href", "srcset", "action"}.isdisjoint(each.attributes), each
        assert not any(name.startswith("on") for name in each.attributes), each
    ours = html.replace(resources.files(PAGE).joinpath("vendor/d3-dag.min.js").read_text("utf-8"), "")
    assert len(ours) < len(html) - 100_000
    assert re.findall(r"https?:|url\(|@import|import\(|fetch\(|XMLHttpRequest|WebSocket", ours) == []
    policy = next(e for e in page.named("meta") if e.attributes.get("http-equiv"))
    assert str(policy.attributes["content"]).startswith("default-src 'none';")
    assert "unsafe" not in str(policy.attributes["content"]).partition("script-src")[2]
    identifiers = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(set(identifiers)) == len(identifiers)


def test_it_says_what_the_report_says(report: Report, tmp_path: Path) -> None:
    page = Page(saved(report, tmp_path, "net"))
    assert report.summary[1:] in page.text
    for group in report.step_groups():
        assert group.meaning in page.text
    for name, text in report.rows():
        assert name.strip() in page.text
        assert text in page.text
    steps = page.data()["steps"]
    assert [each["name"] for each in steps] == [each.substitution for each in report.steps]
    assert [each["proof"] for each in steps] == [each.proof for each in report.steps]
    assert steps[-1]["cost"] == f"{report.cost_after_ms:.3f} ms"


def test_every_operator_is_drawn_with_its_state_and_price(report: Report, tmp_path: Path) -> None:
    page = Page(saved(report, tmp_path))
    drawing = report.records[0].draw()
    after = {each.key for each in drawing.after.operators}
    wanted = {f"b{key}": "stays" if key in after else "gone" for key in drawing.before.prices}
    before = {each.key for each in drawing.before.operators}
    wanted |= {f"a{key}": "stays" if key in before else "new" for key in drawing.after.prices}
    boxes = page.boxes()
    assert {key: boxes[key]["kind"] for key in wanted} == wanted
    assert {"gone", "new", "stays"} == set(wanted.values())
    for side, graph in (("b", drawing.before), ("a", drawing.after)):
        for key, price in graph.prices.items():
            assert boxes[f"{side}{key}"]["time"] == time_of(price.time_us)


def test_the_users_lines_are_told(report: Report, tmp_path: Path) -> None:
    page = Page(saved(report, tmp_path))
    assert "Your lines that run otherwise now" in page.text
    for part in ("y = self.conv(x)", "package/net.py:7"):
        assert part in page.text
    found = page.data()
    made = next(box for key, box in found["ops"].items() if key[0] == "a" and box["op"] == "FusedConv")
    assert ["y = self.conv(x)", "package/net.py:7 in stem.conv"] in made["lines"]


def hostile(drawing: Drawing) -> Drawing:
    """A drawing in which every text of the user is an attack."""
    graphs = [
        dataclasses.replace(
            graph,
            operators=tuple(
                dataclasses.replace(
                    each, op=f"{each.op}{HOSTILE}", name=HOSTILE, attributes=HOSTILE, types=(HOSTILE,)
                )
                for each in graph.operators
            ),
        )
        for graph in (drawing.before, drawing.after)
    ]
    steps = tuple(
        dataclasses.replace(
            step,
            substitution=HOSTILE,
            meaning=HOSTILE,
            removed=tuple(dataclasses.replace(each, op=HOSTILE, types=(HOSTILE,)) for each in step.removed),
            around={key: dataclasses.replace(e, op=HOSTILE) for key, e in step.around.items()},
        )
        for step in drawing.steps
    )
    source = Source(HOSTILE, 1, HOSTILE, HOSTILE)
    sources = {each.key: source for each in drawing.before.operators}
    return dataclasses.replace(drawing, before=graphs[0], after=graphs[1], steps=steps, sources=sources)


@dataclasses.dataclass
class Given:
    """A record of a drawing."""

    drawing: Drawing

    def draw(self) -> Drawing:
        return self.drawing


def test_names_of_the_model_cannot_break_out(report: Report, tmp_path: Path) -> None:
    plain = Page(saved(report, tmp_path))
    bad = dataclasses.replace(
        report,
        searcher=HOSTILE,
        executor=HOSTILE,
        status=Status("rewritten", HOSTILE),
        opaque=(HOSTILE,),
        notes=(HOSTILE,),
        phases_ms={HOSTILE: 1.0},
        choices=(Choice(HOSTILE, HOSTILE, 1.0, 1.0, HOSTILE),),
        searches=(SearchRecord(HOSTILE, 1, 2, True, 0.1, ((0.0, 3.0), (0.1, 2.0), (0.2, 1.0))),),
        steps=tuple(dataclasses.replace(e, substitution=HOSTILE, proof="tested") for e in report.steps),
        records=(Given(hostile(report.records[0].draw())),),
    )
    html = saved(bad, tmp_path, HOSTILE)
    page = Page(html)
    assert len(page.named("script")) == len(plain.named("script"))
    assert page.named("img") == []
    assert "<!--" not in html.replace("&lt;!--", "")
    assert HOSTILE in page.text
    assert page.data()["steps"][0]["name"] == HOSTILE
    assert "tested only" in page.text


def test_repeated_blocks_are_drawn_once_and_in_full_on_demand(tmp_path: Path) -> None:
    report = report_of(blocks(12))
    page = Page(saved(report, tmp_path))
    (band,) = page.data()["bands"]
    assert "× the " in band["text"]
    drawing = report.records[0].draw()
    boxes = page.boxes()
    assert {f"b{key}" for key in drawing.before.prices} <= set(boxes), "in the drawing of all operators"
    assert "whole" in [each.attributes.get("data-do") for each in page.named("button")]
    folded = [box for box in boxes.values() if band["first"] <= box["row"] < band["end"]]
    assert len(folded) > 20
    assert f"{len(folded)} of " in page.text


def test_large_graphs_say_what_is_left_out(tmp_path: Path) -> None:
    """Nothing repeats here, so that folding cannot help."""
    lines, last, dice = [], "x", random.Random(0)
    for at in range(2000):
        lines.append(f"  v{at} = {dice.choice(('Relu', 'Sigmoid', 'Tanh', 'Exp'))}({last})")
        last = f"v{at}"
    text = "graph (x: f32[4]) {\n" + "\n".join(lines) + f"\n  return {last}\n}}"
    report = report_of(text, searcher="none")
    page = Page(saved(report, tmp_path))
    bands = page.data()["bands"]
    seen = [b for b in page.boxes().values() if not any(e["first"] <= b["row"] < e["end"] for e in bands)]
    assert len(seen) < 1000
    assert bands[-1]["text"] == "not drawn"
    assert "too large to be drawn in full" in page.text
    assert "whole" not in [each.attributes.get("data-do") for each in page.named("button")]
    assert len(page.boxes()) == 2 * 2001


def test_a_report_without_graphs_has_a_page(report: Report, tmp_path: Path) -> None:
    read = Report.from_json(report.to_json())
    page = Page(saved(read, tmp_path))
    assert report.summary[1:] in page.text
    assert "not in this report" in page.text
    assert page.boxes() == {}
    report = Report(Status(fallback_reason="because"))
    assert "the original runs" in Page(saved(report, tmp_path)).text.lower()


def test_every_graph_of_a_model_has_a_place(report: Report, tmp_path: Path) -> None:
    other = report_of(blocks(2))
    merged = Report.merged([report, other])
    page = Page(saved(merged, tmp_path))
    names = [[each["name"] for each in page.data(number)["steps"]] for number in (0, 1)]
    assert names == [[each.substitution for each in one.steps] for one in (report, other)]
    assert "(graph 2 of 2)" in page.text
    many = Report.merged([report] * 9)
    assert "3 of 9 graphs" in Page(saved(many, tmp_path)).text


def test_measured_calls_stand_next_to_their_predictions(report: Report, tmp_path: Path) -> None:
    drawing = report.records[0].draw()
    key, price = next(iter(drawing.after.prices.items()))
    calls = (TimedCall(f"kernel{HOSTILE}", 700.0, (key,), "stem", "net.py:7"), TimedCall("copy", 100.0))
    measured = dataclasses.replace(
        report,
        plans=({"graph_hash": "same"},),
        split=(Contribution("kernels", 1.5, 1.0, 0.02),),
        profiles=(Profile("same", 1.0, calls, 7),),
    )
    page = Page(saved(measured, tmp_path))
    for cells in (
        (f"kernel{HOSTILE}", "700 µs", "70.0%", time_of(price.time_us), "stem net.py:7"),
        ("overhead between calls", "200 µs", "20.0%"),
        ("the kernels", "1.50×", "1.500 ms", "1.000 ms", "the same graph by PyTorch's own calls, spread 2%"),
    ):
        assert "".join("".join(cells).split()) in "".join(page.text.split())
    assert "measured one by one" not in Page(saved(report, tmp_path)).text
