"""The report page in a real browser: drawn, zoomed, clicked and navigated, without the network."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.browser import Browser, browser, missing
from tests.report.page_cases import CONVOLUTION, blocks, report_of, tangle
from tests.report.test_page import HOSTILE, Given, hostile
from torchrlopt.report import Report, Source
from torchrlopt.report.parts import Contribution, Profile, TimedCall

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def shown(chromium: Browser, report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "page.html", "net")
    chromium.open(tmp_path / "page.html")


@pytest.fixture
def page(chromium: Browser, tmp_path: Path) -> Browser:
    """The page of a short graph."""
    shown(chromium, report_of(CONVOLUTION, {"c": Source("net.py", 7, "y = conv(x)", "stem")}), tmp_path)
    return chromium


@pytest.fixture
def long_page(chromium: Browser, tmp_path: Path) -> Browser:
    """The page of a graph of equal blocks."""
    shown(chromium, report_of(blocks(12)), tmp_path)
    return chromium


def count(page: Browser, selector: str) -> int:
    return int(page.run("return document.querySelectorAll(arguments[0]).length", selector))


def click(page: Browser, selector: str) -> None:
    page.run(
        "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', {bubbles: true}))",
        selector,
    )


def test_it_is_drawn_and_asks_for_nothing(page: Browser) -> None:
    assert page.complaints() == []
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    sizes = page.run(
        "return [...document.querySelectorAll('.canvas .box')].map((box) => {"
        "const {width, height} = box.getBoundingClientRect(); return width * height})"
    )
    assert len(sizes) >= 8
    assert min(sizes) > 100


def test_texts_lie_within_their_boxes(page: Browser) -> None:
    over = page.run(
        "return [...document.querySelectorAll('.canvas .box:not(.leaf)')].filter((box) => {"
        "const room = box.querySelector('rect').getBoundingClientRect();"
        "return [...box.querySelectorAll('text')].some((text) => {"
        "const own = text.getBoundingClientRect();"
        "return own.left < room.left - 1 || own.right > room.right + 1})}).map((box) => box.textContent)"
    )
    assert over == []


def test_boxes_never_overlap_and_survivors_stand_side_by_side(chromium: Browser, tmp_path: Path) -> None:
    shown(chromium, report_of(tangle(4, 60)), tmp_path)
    places = chromium.run(
        "return [...document.querySelectorAll('.canvas svg')].map((svg) => [...svg.querySelectorAll('.box')]"
        ".map((box) => {const {x, y, width, height} = box.firstChild.getBoundingClientRect();"
        "return [box.dataset.key, x, y, width, height]}))"
    )
    for side in places:
        for (_, x, y, width, height), (_, x2, y2, width2, height2) in itertools.combinations(side, 2):
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
    before, after = ({key[1:]: y for key, _, y, *_ in side} for side in places)
    both = before.keys() & after.keys()
    assert len(both) > 20
    assert {key: before[key] for key in both} == pytest.approx({key: after[key] for key in both}, abs=0.5)


def test_a_large_graph_is_drawn(chromium: Browser, tmp_path: Path) -> None:
    shown(chromium, report_of(tangle(3, 500)), tmp_path)
    click(chromium, "[data-do=whole]")
    assert count(chromium, ".canvas .box") > 900
    assert chromium.complaints() == []


def test_nothing_is_cut_on_a_phone(chromium: Browser, tmp_path: Path) -> None:
    report = report_of(CONVOLUTION, {"c": Source("net.py", 7, f"y = {'long_name' * 9}(x)", "stem")})
    calls = tuple(
        TimedCall(f"convolution {at} + sum + relu", 50.0, (), "a.b.c", "net.py:7") for at in range(9)
    )
    split = (Contribution("plan", 1.5, 1.0, 0.02), Contribution("kernels", 2.0, 1.0, 0.02))
    measured = dataclasses.replace(
        report,
        plans=({"graph_hash": "same"},),
        split=split,
        profiles=(Profile("same", 1.0, calls, 7),),
    )
    chromium.resize(390)
    try:
        shown(chromium, measured, tmp_path)
        assert chromium.run("return document.documentElement.scrollWidth") == 390
        wide = (
            "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth)"
        )
        assert chromium.run(f"return {wide}.map((each) => each.ariaLabel)") == []
        label = "return getComputedStyle(document.querySelector('td.number'), '::before').content"
        assert "factor" in chromium.run(label)
    finally:
        chromium.resize(0)


def test_no_other_script_runs(page: Browser) -> None:
    page.run(
        "const script = document.createElement('script'); script.textContent = 'window.ran = true';"
        "document.body.append(script)"
    )
    assert page.run("return window.ran === undefined")
    assert any("Content Security Policy" in each for each in page.complaints())


def test_what_changed_has_other_colours(page: Browser) -> None:
    fills = {
        kind: page.run(f"return getComputedStyle(document.querySelector('.canvas .{kind} rect')).fill")
        for kind in ("gone", "new", "stays")
    }
    assert len(set(fills.values())) == 3


def test_zoom(page: Browser) -> None:
    def width() -> float:
        return float(page.run("return document.querySelector('.canvas svg').getBoundingClientRect().width"))

    before = width()
    click(page, "[data-do=zoom-in]")
    assert width() == pytest.approx(before * 1.25, rel=1e-3)
    click(page, "[data-do=zoom-out]")
    assert width() == pytest.approx(before, rel=1e-3)
    wheel = "{deltaY: -300, ctrlKey: true, cancelable: true, clientX: 100, clientY: 100}"
    page.run(f"document.querySelector('.canvas').dispatchEvent(new WheelEvent('wheel', {wheel}))")
    assert width() == pytest.approx(before * 2.718, rel=1e-2)
    click(page, "[data-do=fit]")
    assert width() == pytest.approx(before, rel=1e-3)


def test_both_drawings_scroll_together(long_page: Browser) -> None:
    click(long_page, "[data-do=zoom-in]")
    click(long_page, "[data-do=whole]")
    tops = long_page.run(
        "const [before, after] = document.querySelectorAll('.canvas');"
        "before.scrollTop = 120; before.dispatchEvent(new Event('scroll'));"
        "return [before.scrollTop, after.scrollTop]"
    )
    assert tops[0] == tops[1] == 120


def test_a_chosen_operator_shows_its_other_side(page: Browser) -> None:
    gone = "document.querySelector('.canvas .gone')"
    page.run(f"{gone}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    assert "It was taken away" in page.run("return document.querySelector('.details').textContent")
    chosen = page.run(
        "return [...document.querySelectorAll('.canvas .chosen')].map((box) => box.classList[1])"
    )
    assert set(chosen) == {"gone", "new"}
    page.run(
        "const box = document.querySelector('.canvas .new'); box.focus();"
        "box.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true, cancelable: true}))"
    )
    told = page.run("return document.querySelector('.details').textContent")
    assert "The plan made it of 3 operators" in told
    assert "y = conv(x)" in told


def test_hovering_tells_operator_type_price_and_line(page: Browser) -> None:
    told = page.run("return document.querySelector('.canvas .gone title').textContent")
    for part in ("Conv", "f32[1, 8, 16, 16]", "estimated", "pads=[1, 1, 1, 1]", "y = conv(x)", "net.py:7"):
        assert part in told


def test_steps_are_walked_through(page: Browser) -> None:
    def heading() -> str:
        return str(page.run("return document.querySelector('.step h3').textContent"))

    steps = count(page, "details tbody tr")
    assert steps > 1
    page.run(
        "const range = document.querySelector('input[data-do=step]'); range.value = 1;"
        "range.dispatchEvent(new Event('input'))"
    )
    assert heading().startswith(f"Step 1 of {steps}: ")
    assert count(page, ".step svg.mini") == 2
    click(page, "[data-do=next]")
    assert heading().startswith("Step 2 ")
    assert count(page, "details tr.current") == 1
    assert count(page, ".canvas .chosen") > 0
    click(page, "[data-do=previous]")
    click(page, "[data-do=previous]")
    assert heading().startswith("Step 1 "), "there is none before"
    click(page, f"details tbody tr:nth-child({steps})")
    assert heading().startswith(f"Step {steps} ")


def test_folded_blocks_open(long_page: Browser) -> None:
    few = count(long_page, ".canvas .box:not(.band):not(.leaf)")
    assert count(long_page, ".canvas .band") == 2
    click(long_page, "[data-do=next]")
    assert count(long_page, ".canvas .chosen") > 0, (
        "the step's operators may be in a band, which is marked then"
    )
    click(long_page, "[data-do=whole]")
    many = count(long_page, ".canvas .box:not(.band):not(.leaf)")
    assert count(long_page, ".canvas .band") == 0
    assert many > 2 * few
    click(long_page, "[data-do=whole]")
    assert count(long_page, ".canvas .band") == 2
    assert long_page.complaints() == []


def test_dark_and_light_differ_in_paper(page: Browser) -> None:
    rules = page.run(
        "return [...document.styleSheets[0].cssRules].filter((rule) => rule.media"
        " && rule.media.mediaText.includes('prefers-color-scheme: dark')).length"
    )
    assert rules == 1


def test_attacks_stay_text(chromium: Browser, tmp_path: Path) -> None:
    report = report_of(CONVOLUTION)
    drawing = hostile(report.records[0].draw())
    steps = tuple(dataclasses.replace(step, substitution=HOSTILE) for step in report.steps)
    shown(chromium, dataclasses.replace(report, steps=steps, records=(Given(drawing),)), tmp_path)
    click(chromium, "[data-do=next]")
    click(chromium, ".canvas .gone")
    assert HOSTILE in chromium.run("return document.querySelector('.canvas .gone title').textContent")
    assert chromium.run("return document.querySelector('.step h3').textContent").endswith(HOSTILE)
    assert count(chromium, "img, iframe, .details script, .step script") == 0
    assert chromium.complaints() == []
