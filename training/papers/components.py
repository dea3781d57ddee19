"""The components of each row, drawn from their inputs and outputs, and the costs of building them."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve

from training.papers.experiment import Data, Shown, recorded

_OUTSIDE = "environment\nand keys"
_WIDTH, _HEIGHT = 0.72, 0.44  # of a box; boxes are 1 apart


def _names(values: str) -> list[str]:
    """Names of values, without dtypes and shapes."""
    return [value.split(" ")[0] for value in values.split("; ")]


def _picture(rows: pd.DataFrame) -> Figure:
    """One line per row: components in order, forward wires above them, backward wires below."""
    parts = dict(list(rows.groupby("row", sort=False)))
    most = max(map(len, parts.values())) + 1
    figure = Figure(figsize=(1.6 * most, 2.7 * len(parts)), layout="constrained")
    panels = figure.subplots(len(parts), 1, squeeze=False)[:, 0]
    for panel, (row, components) in zip(panels, parts.items(), strict=True):
        _draw_row(panel, components)
        panel.set_xlim(-0.1, most)
        panel.set_ylim(-0.75, 2.05)
        panel.set_axis_off()
        title = f"row {row}: workers of the collector play with what stands left of it"
        panel.set_title(title, loc="left", fontsize=11)
    return figure


def _draw_row(panel: Any, components: pd.DataFrame) -> None:
    takes, gives = (list(map(_names, components[column])) for column in ("takes", "gives"))
    for place, name in enumerate(["", *components["component"]]):
        colour = "#dde6f0" if name else "#eeeeee"
        box = FancyBboxPatch((place, 0), _WIDTH, _HEIGHT, boxstyle="round,pad=0.02", facecolor=colour)
        panel.add_patch(box)
        panel.text(place + _WIDTH / 2, _HEIGHT / 2, name or _OUTSIDE, ha="center", va="center", fontsize=9)
    taken = {value for values in takes for value in values}
    for place, values in enumerate(gives, 1):
        left = [value for value in values if value not in taken]
        if left:  # consumed by the environment or by the component's caller
            text = f"gives {', '.join(left)}"
            panel.text(place + _WIDTH / 2, -0.14, text, ha="center", va="center", fontsize=8)
    giver = {value: place for place, values in enumerate(gives, 1) for value in values}
    wires: dict[tuple[int, int], list[str]] = {}
    for place, values in enumerate(takes, 1):
        for value in values:
            wires.setdefault((giver.get(value, 0), place), []).append(value)
    for (begin, end), values in wires.items():
        _draw_wire(panel, begin, end, ", ".join(values))


def _draw_wire(panel: Axes, begin: int, end: int, text: str) -> None:
    """Draw an arc whose height grows with its length, with a label at its top."""
    sign = 1 if begin < end else -1
    y = _HEIGHT + 0.03 if sign > 0 else -0.03
    height = 0.14 + 0.24 * abs(end - begin)
    x_begin, x_end = begin + _WIDTH * (0.5 + 0.2 * sign), end + _WIDTH * (0.5 - 0.2 * sign)
    middle = (x_begin + x_end) / 2
    curve = Curve([(x_begin, y), (middle, y + 2 * sign * height), (x_end, y)], [1, 3, 3])  # MOVETO, CURVE3
    colour = "#446688" if sign > 0 else "#aa5533"
    arrow = FancyArrowPatch(path=curve, arrowstyle="-|>", mutation_scale=9, color=colour)
    panel.add_patch(arrow)
    back = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    panel.text(middle, y + sign * height, text, ha="center", va="center", fontsize=8, bbox=back)


def _shown(data: Data) -> Shown:
    rows = data.frames["rows"]
    ms = data.main.set_index("what")["milliseconds"]
    return {"": _picture(rows)}, {
        "spaces": rows[rows["row"] == "wm"].drop(columns="row"),
        "costs": data.main.rename(columns={"milliseconds": "ms"}),
        "wiring": float(ms["fitting the wires"].max()),
        "pyg": f"{ms['an update, PyG'] / ms['an update, plain torch'] - 1:+.1%}",
    }


COMPONENTS = recorded(
    "Components, and how the rows are composed of them",
    "After the slides on RLgraph (components, build overhead)",
    _shown,
    "components",
)
