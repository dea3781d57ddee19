"""The report page in a real browser: drawn, zoomed, clicked and navigated, without the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.browser import Browser, browser, missing
from tests.report.page_cases import CONVOLUTION, report_of
from tests.report.test_page import HOSTILE, Given, hostile
from torchrlopt.report import Report, Source

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


def test_no_other_script_runs(page: Browser) -> None:
    page.run(
        "const script = document.createElement('script'); script.textContent = 'window.ran = true';"
        "document.body.append(script)"
    )
    assert page.run("return window.ran === undefined")
    assert any("Content Security Policy" in each for each in page.complaints())


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
