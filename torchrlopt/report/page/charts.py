"""Positions of the points and axes of a chart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

WIDTH, HEIGHT = 900, 200
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 12, 30
_PARTS = 4  # of each axis


@dataclasses.dataclass(frozen=True)
class Curve:
    """A step curve: each point holds until the next one.

    Attributes:
        points: in pixels.
        across: (pixel, value) of each mark of the horizontal axis.
        up: the same for the vertical axis.
    """

    points: Sequence[tuple[float, float]]
    across: Sequence[tuple[float, float]]
    up: Sequence[tuple[float, float]]


def curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Place the points (x, milliseconds), in order, in a chart of WIDTH x HEIGHT pixels."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    # Leave some room above and below, even if all points are equally high, or at 0.
    room = (max(ys) - min(ys)) * 0.08 or abs(max(ys)) * 0.01 or 1.0
    low, high = min(ys) - room, max(ys) + room
    span = max(xs) - min(xs) or 1.0

    def across(x: float) -> float:
        return round(LEFT + (x - min(xs)) / span * (WIDTH - LEFT - RIGHT), 1)

    def up(y: float) -> float:
        return round(TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [part / _PARTS for part in range(_PARTS + 1)]
    marks = [min(xs) + span * part for part in parts]
    if all(isinstance(x, int) for x in xs):
        marks = sorted({round(x) for x in marks})
    return Curve(
        [(across(x), up(y)) for x, y in points],
        [(across(x), x) for x in marks],
        [(up(y), y) for y in (low + (high - low) * part for part in parts)],
    )
