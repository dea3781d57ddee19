"""Graphs as SVG: a box for each operator, coloured by what became of it, with a bar for its time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from torchrlopt.report.drawing import Drawing, DrawnGraph, DrawnStep, Operator, Price
from torchrlopt.report.page.html import Html, element, join
from torchrlopt.report.page.layers import Band, Layers, drawn
from torchrlopt.report.page.layout import Box, Key, Layout, lay_out
from torchrlopt.report.page.words import shortened, time_of

_HEIGHT = 40.0
_BAND_HEIGHT = 44.0
_LEAF_HEIGHT = 24.0
_MIN_WIDTH = 96.0
_CHAR = 8.3  # mean width of a letter of the label in a wide font, in pixels
_SMALL_CHAR = 6.2
_MAX_LABEL = 26
_PAD = 20.0


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is drawn as one box.

    Attributes:
        key: of the box in the page.
        kind: class of its style: "stays", "gone", "new", "leaf" or "band".
        label: first line.
        small: second line; may be empty.
        aside: at the right of the first line: its time.
        share: length of its bar, from 0 to 1.
        layer: row.
        is_output: whether the graph returns its result.
    """

    key: str
    kind: str
    label: str
    small: str
    aside: str
    share: float
    layer: int
    is_output: bool = False

    @property
    def width(self) -> float:
        """Of the box, in pixels."""
        first = len(self.label) * _CHAR + (len(self.aside) * _SMALL_CHAR + 10 if self.aside else 0)
        if self.kind == "leaf":
            return len(self.label) * _SMALL_CHAR + _PAD
        return max(_MIN_WIDTH, first + _PAD, len(self.small) * _SMALL_CHAR + _PAD)

    @property
    def height(self) -> float:
        """Of the box, in pixels."""
        return {"leaf": _LEAF_HEIGHT, "band": _BAND_HEIGHT}.get(self.kind, _HEIGHT)


@dataclasses.dataclass(frozen=True)
class Side:
    """One graph of a picture.

    Attributes:
        svg: the drawing.
        folded: operators inside of each band, by the key of its box.
        count: operators that have a box of their own.
    """

    svg: Html
    folded: Mapping[str, list[int]]
    count: int


def sides(drawing: Drawing, layers: Layers, bands: Sequence[Band]) -> tuple[Side, Side]:
    """Both graphs, with the layers of `bands` folded."""
    row_of, num_rows = _rows(layers.count, bands)
    graphs = [_labelled(graph, drawing.labels) for graph in (drawing.before, drawing.after)]
    before = _shapes("b", graphs[0], layers.before, drawing.after, "gone", bands, row_of)
    after = _shapes("a", graphs[1], layers.after, drawing.before, "new", bands, row_of)
    heights = [_LEAF_HEIGHT] * num_rows
    for shapes, _ in (before, after):
        for shape in shapes:
            heights[shape.layer] = max(heights[shape.layer], shape.height)
    return (
        _side("b", "Graph before", drawing.before, before, heights),
        _side("a", "Graph after", drawing.after, after, heights),
    )


def _labelled(graph: DrawnGraph, labels: Mapping[int, str]) -> DrawnGraph:
    """A graph whose inputs are called as the user calls them."""
    operators = (
        dataclasses.replace(each, name=labels.get(each.key, each.name)) if each.is_leaf else each
        for each in graph.operators
    )
    return dataclasses.replace(graph, operators=tuple(operators))


def _rows(count: int, bands: Sequence[Band]) -> tuple[list[int], int]:
    """The row of each layer where each band has one row, and the number of rows."""
    row_of, row = [], 0
    starts = {band.first for band in bands}
    inside = {layer for band in bands for layer in range(band.first + 1, band.end)}
    for layer in range(count):
        if layer in inside:
            row_of.append(row - 1)
            continue
        row_of.append(row)
        row += 1
    assert len(starts) == len(bands), "bands do not overlap"
    return row_of, row


def _shapes(
    side: str,
    graph: DrawnGraph,
    layer: Mapping[int, int],
    other: DrawnGraph,
    changed: str,
    bands: Sequence[Band],
    row_of: Sequence[int],
) -> tuple[list[Shape], dict[int, str]]:
    """The boxes of one graph, and in which box each operator is."""
    band_of = {at: number for number, band in enumerate(bands) for at in range(band.first, band.end)}
    survivors = {each.key for each in other.operators}
    dearest = max((price.time_us for g in (graph, other) for price in g.prices.values()), default=0.0)
    box_of: dict[int, str] = {}
    shapes: list[Shape] = []
    folded: dict[int, list[Operator]] = {}
    for each in drawn(graph):
        number = band_of.get(layer[each.key])
        if number is not None:
            box_of[each.key] = f"{side}~{number}"
            folded.setdefault(number, []).append(each)
            continue
        box_of[each.key] = f"{side}{each.key}"
        kind = "leaf" if each.is_leaf else "stays" if each.key in survivors else changed
        row, is_output = row_of[layer[each.key]], each.key in graph.outputs
        shapes.append(
            _shape(box_of[each.key], each, kind, graph.prices.get(each.key), dearest, row, is_output)
        )
    for number, operators in folded.items():
        count = sum(not each.is_leaf for each in operators)
        time_us = sum(graph.prices[each.key].time_us for each in operators if each.key in graph.prices)
        small = f"{count} operator{'s' * (count != 1)}, {time_of(time_us)}"
        row = row_of[bands[number].first]
        shapes.append(Shape(f"{side}~{number}", "band", bands[number].text, small, "", 0.0, row))
    return shapes, box_of


def _shape(
    key: str,
    each: Operator,
    kind: str,
    price: Price | None,
    dearest: float,
    row: int,
    is_output: bool = False,
) -> Shape:
    types = each.types[0] if each.types else ""
    if each.is_leaf:
        label = {"Weight": "weight", "Constant": "constant"}.get(each.op, each.name)
        return Shape(key, kind, f"{shortened(label, _MAX_LABEL)} {types}".strip(), "", "", 0.0, row)
    share = price.time_us / dearest if price is not None and dearest > 0 else 0.0
    aside = time_of(price.time_us) if price is not None else ""
    small = shortened(types, 34) + (f" +{len(each.types) - 1}" if len(each.types) > 1 else "")
    return Shape(key, kind, shortened(_plain(each.op), _MAX_LABEL), small, aside, share, row, is_output)


def _plain(op: str) -> str:
    """An operator without the namespace of PyTorch's."""
    return op.removeprefix("aten.")


def _side(
    side: str,
    title: str,
    graph: DrawnGraph,
    found: tuple[list[Shape], dict[int, str]],
    heights: Sequence[float],
) -> Side:
    shapes, box_of = found
    edges: dict[tuple[Key, Key], None] = {}
    for each in drawn(graph):
        for key in each.inputs:
            if key in box_of and box_of[key] != box_of[each.key]:
                edges[(box_of[key], box_of[each.key])] = None
    svg = _svg(shapes, list(edges), heights, title, "graph")
    folded: dict[str, list[int]] = {}
    for key, box in box_of.items():
        if "~" in box:
            folded.setdefault(box, []).append(key)
    return Side(svg, folded, sum(shape.kind in ("stays", "gone", "new") for shape in shapes))


def _svg(
    shapes: Sequence[Shape],
    edges: Sequence[tuple[Key, Key]],
    heights: Sequence[float],
    title: str,
    class_: str,
    gap: float = 30.0,
) -> Html:
    boxes: dict[Key, Box] = {shape.key: Box(shape.layer, shape.width, shape.height) for shape in shapes}
    layout = lay_out(boxes, edges, heights, gap)
    ways = (
        element("path", d="".join(map(_curve, lines)), data_from=source)
        for source, lines in layout.ways.items()
    )
    width, height = round(layout.width), round(layout.height)
    return element(
        "svg",
        element("g", *ways, class_="edges"),
        *(_box(shape, layout) for shape in shapes),
        class_=class_,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="group",
        aria_label=title,
    )


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """A line through points, from above to below, that leaves and arrives upright."""
    (x, y), *others = points
    text = f"M{x:.0f} {y:.0f}"
    for next_x, next_y in others:
        if abs(next_x - x) < 1:
            text += f"V{next_y:.0f}"
        else:
            middle = (y + next_y) / 2
            text += f"C{x:.0f} {middle:.0f} {next_x:.0f} {middle:.0f} {next_x:.0f} {next_y:.0f}"
        x, y = next_x, next_y
    return text


def _box(shape: Shape, layout: Layout) -> Html:
    x, y = layout.centres[shape.key]
    width, height = shape.width, shape.height
    parts: list[Html] = [element("rect", width=f"{width:.0f}", height=f"{height:.0f}", rx=6)]
    if shape.share > 0.005:
        long = max(2.0, shape.share * (width - 12))
        parts.append(
            element("rect", x=6, y=f"{height - 6:.0f}", width=f"{long:.1f}", height=3, rx=1.5, class_="heat")
        )
    if shape.kind == "leaf":
        parts.append(
            element("text", shape.label, x=f"{width / 2:.0f}", y=16, class_="type", text_anchor="middle")
        )
    else:
        parts.append(element("text", shape.label, x=9, y=16))
        if shape.aside:
            parts.append(
                element("text", shape.aside, x=f"{width - 9:.0f}", y=16, class_="time", text_anchor="end")
            )
        parts.append(element("text", shape.small, x=9, y=30, class_="type"))
    told = ", ".join(text for text in (shape.label, shape.small, shape.aside, _TOLD.get(shape.kind)) if text)
    return element(
        "g",
        *parts,
        class_=f"box {shape.kind}" + (" output" if shape.is_output else ""),
        transform=f"translate({x - width / 2:.0f} {y - height / 2:.0f})",
        data_key=shape.key,
        tabindex=None if shape.kind == "leaf" else "0",
        role="img",
        aria_label=told,
    )


_TOLD = {"gone": "taken away", "new": "made by the plan", "stays": "unchanged"}


def mini(step: DrawnStep) -> Html:
    """What one step took away, beside what it put there."""
    before = _part(step, step.removed, step.read_before, "gone", "before the step")
    after = _part(step, step.added, step.read_after, "new", "after the step")
    arrow = element("div", "→", class_="arrow", aria_hidden="true")
    return join(before, arrow, after)


def _part(step: DrawnStep, operators: Iterable[Operator], read: Sequence[int], kind: str, title: str) -> Html:
    own = {each.key: each for each in operators}
    used = dict.fromkeys(key for each in own.values() for key in each.inputs if key not in own)
    shown = {key: step.around[key] for key in (*used, *read) if key in step.around and key not in own}
    depth: dict[int, int] = dict.fromkeys(shown, 0)
    for each in own.values():
        depth[each.key] = 1 + max((depth[key] for key in each.inputs if key in depth), default=0)
    shapes = [
        Shape(f"{key}", "leaf", _outside(each), "", "", 0.0, _row_above(key, own.values(), depth))
        for key, each in shown.items()
    ]
    for each in own.values():
        once = " once" if each.is_static else ""
        style = f"{kind}{once}"
        shapes.append(
            dataclasses.replace(_shape(f"{each.key}", each, kind, None, 0.0, depth[each.key]), kind=style)
        )
    last = max(depth.values(), default=0) + 1
    outs = [f"out{key}" for key in read if key in depth]
    shapes += [Shape(out, "leaf", "rest of the graph", "", "", 0.0, last) for out in outs]
    edges: dict[tuple[Key, Key], None] = {
        (f"{key}", f"{each.key}"): None for each in own.values() for key in each.inputs if key in depth
    }
    edges |= {(f"{key}", f"out{key}"): None for key in read if key in depth}
    heights = [_LEAF_HEIGHT] * (last + 1)
    for shape in shapes:
        heights[shape.layer] = max(heights[shape.layer], shape.height)
    return _svg(shapes, list(edges), heights, title, "mini", gap=22.0)


def _row_above(key: int, own: Iterable[Operator], depth: Mapping[int, int]) -> int:
    """Just above its first reader."""
    return max(0, min((depth[each.key] for each in own if key in each.inputs), default=1) - 1)


def _outside(each: Operator) -> str:
    types = each.types[0] if each.types else ""
    if each.is_leaf:
        return f"{each.op.lower()} {types}"
    return f"{_plain(each.op)} {types}"
