"""Small charts as SVG: how the predicted time fell, step by step and in the search."""

from __future__ import annotations

from collections.abc import Sequence

from torchrlopt.report.page.html import Html, element, join
from torchrlopt.report.page.words import milliseconds

_WIDTH, _HEIGHT = 900.0, 200.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 14.0, 12.0, 30.0


def curve(
    points: Sequence[tuple[float, float]], across: str, title: str, identifier: str | None = None
) -> Html:
    """A line of steps: each point holds until the next one.

    Args:
        points: (where, predicted time in milliseconds), in order.
        across: what the horizontal axis counts; "s" is said of seconds.
        title: what it shows, for those who cannot see it.
        identifier: of the chart in the page, for the script that marks a point.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    room = (high - low) * 0.08 or abs(high) * 0.01 or 1.0
    low, high = low - room, high + room
    span = max(xs) - min(xs) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (x - min(xs)) / span * (_WIDTH - _LEFT - _RIGHT),
            _TOP + (high - y) / (high - low) * (_HEIGHT - _TOP - _BOTTOM),
        )

    placed = [place(x, y) for x, y in points]
    line = f"M{placed[0][0]:.1f} {placed[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in placed[1:])
    floor = _HEIGHT - _BOTTOM
    area = f"{line}V{floor:.1f}H{placed[0][0]:.1f}Z"
    grid = []
    for part in range(5):
        value = low + (high - low) * part / 4
        y = place(min(xs), value)[1]
        grid.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        grid.append(element("text", milliseconds(value), x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end"))
    for part in range(5):
        value = min(xs) + span * part / 4
        text = f"{value:.2f} s" if across == "s" else f"{value:.0f}"
        x = place(value, low)[0]
        anchor = "end" if part == 4 else "middle"
        grid.append(element("text", text, x=f"{x:.1f}", y=_HEIGHT - 12, text_anchor=anchor))
    mark = element("circle", cx=f"{placed[0][0]:.1f}", cy=f"{placed[0][1]:.1f}", r=5, class_="mark")
    return element(
        "svg",
        element("g", *grid, class_="grid"),
        element("path", d=area, class_="area"),
        element("path", d=line, class_="line"),
        mark if identifier else None,
        class_="chart",
        id=identifier,
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        role="img",
        aria_label=title,
        data_points=" ".join(f"{x:.1f},{y:.1f}" for x, y in placed) if identifier else None,
    )


def bars(before: float, after: float, largest: float) -> Html:
    """Two bars, one above the other: before and after."""

    def bar(kind: str, value: float) -> Html:
        share = 100 * value / largest if largest > 0 else 0.0
        return element("i", class_=kind, style=f"width:{share:.2f}%")

    return element("span", join(bar("was", before), bar("now", after)), class_="bars", aria_hidden="true")
