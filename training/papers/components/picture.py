"""Draws compositions from their specs and wires only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve

from training.papers.components.component import Composition

OUTSIDE = "environment\nand keys"
WIDTH, HEIGHT = 0.72, 0.44  # of a box; boxes are 1 apart


def draw(compositions: Sequence[Composition]) -> Figure:
    """One line per composition: components in order, forward wires above them, backward wires below."""
    most = max(len(each.specs) for each in compositions) + 1
    figure = Figure(figsize=(1.6 * most, 2.7 * len(compositions)), layout="constrained")
    panels = figure.subplots(len(compositions), 1, squeeze=False)[:, 0]
    for panel, parts in zip(panels, compositions, strict=True):
        _draw_one(panel, parts)
        panel.set_xlim(-0.1, most)
        panel.set_ylim(-0.75, 2.05)
        panel.set_axis_off()
        panel.set_title(
            f"row {parts.row}: workers of the collector play with what stands left of it",
            loc="left",
            fontsize=11,
        )
    return figure


def _draw_one(panel: Any, parts: Composition) -> None:
    names = ["", *(spec.name for spec in parts.specs)]
    for place, name in enumerate(names):
        colour = "#dde6f0" if name else "#eeeeee"
        box = FancyBboxPatch((place, 0), WIDTH, HEIGHT, boxstyle="round,pad=0.02", facecolor=colour)
        panel.add_patch(box)
        panel.text(place + WIDTH / 2, HEIGHT / 2, name or OUTSIDE, ha="center", va="center", fontsize=9)
    taken = {value for _, value, _ in parts.wires()}
    for place, spec in enumerate(parts.specs, 1):
        left = [value for value in spec.gives if value not in taken]
        if left:  # consumed by the environment or by the component's caller
            panel.text(
                place + WIDTH / 2, -0.14, f"gives {', '.join(left)}", ha="center", va="center", fontsize=8
            )
    wires: dict[tuple[str, str], list[str]] = {}
    for giver, value, taker in parts.wires():
        wires.setdefault((giver, taker), []).append(value)
    for (giver, taker), values in wires.items():
        _wire(panel, names.index(giver), names.index(taker), ", ".join(values))


def _wire(panel: Axes, begin: int, end: int, text: str) -> None:
    """Draw an arc whose height grows with its length, with a label at its top."""
    sign = 1 if begin < end else -1
    y = HEIGHT + 0.03 if sign > 0 else -0.03
    height = 0.14 + 0.24 * abs(end - begin)
    x_begin, x_end = begin + WIDTH * (0.5 + 0.2 * sign), end + WIDTH * (0.5 - 0.2 * sign)
    middle = (x_begin + x_end) / 2
    curve = Curve([(x_begin, y), (middle, y + 2 * sign * height), (x_end, y)], [1, 3, 3])  # MOVETO, CURVE3
    colour = "#446688" if sign > 0 else "#aa5533"
    arrow = FancyArrowPatch(path=curve, arrowstyle="-|>", mutation_scale=9, color=colour)
    panel.add_patch(arrow)
    back = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    panel.text(middle, y + sign * height, text, ha="center", va="center", fontsize=8, bbox=back)
