"""Layers, bands and coordinates: what stands side by side belongs together, and nothing lies on anything."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.unit.page_cases import CONVOLUTION, blocks, report_of, tangle
from torchrlopt.report.drawing import Drawing
from torchrlopt.report.page.layers import layers_of, overview
from torchrlopt.report.page.layout import Box, lay_out


def drawing_of(text: str) -> Drawing:
    return report_of(text).records[0].draw()


@pytest.mark.parametrize(
    "text", [CONVOLUTION, blocks(2), blocks(9), *(tangle(seed, 60) for seed in range(6))]
)
def test_edges_lead_to_lower_layers(text: str) -> None:
    drawing = drawing_of(text)
    layers = layers_of(drawing)
    for graph, layer in ((drawing.before, layers.before), (drawing.after, layers.after)):
        for each in graph.operators:
            for key in each.inputs:
                if key in layer and each.key in layer:
                    assert layer[key] < layer[each.key]
    assert {*layers.before.values(), *layers.after.values()} == set(range(layers.count))


def test_what_survives_stands_side_by_side() -> None:
    drawing = drawing_of(CONVOLUTION)
    layers = layers_of(drawing)
    (transpose,) = [each.key for each in drawing.before.operators if each.op == "Transpose"]
    assert layers.before[transpose] == layers.after[transpose]
    (relu,) = [each.key for each in drawing.before.operators if each.op == "Relu"]
    (fused,) = [each.key for each in drawing.after.operators if each.op == "FusedConv"]
    assert layers.after[fused] == layers.before[relu], "where the last one stood that it comes from"


def test_what_is_read_late_stands_where_it_is_read() -> None:
    """Products of an unrolled recurrence hang on the inputs alone: they would make one row of the drawing."""
    steps = 6
    lines = ["  s0 = Relu(x)"]
    for at in range(steps):
        lines.append(f"  p{at} = MatMul(x, %w{at})")
        lines.append(f"  q{at} = Sigmoid(p{at})")
        lines.append(f"  s{at + 1} = Mul(s{at}, q{at})")
    weights = ", ".join(f"%w{at}: f32[4,4]" for at in range(steps))
    body = "\n".join(lines)
    drawing = (
        report_of(f"graph (x: f32[4,4], {weights}) {{\n{body}\n  return s{steps}\n}}", searcher="none")
        .records[0]
        .draw()
    )
    layers = layers_of(drawing)
    names = {each.name or each.key: each.key for each in drawing.before.operators}
    for at in range(steps):
        product, sigmoid, state = (layers.before[names[f"{kind}{at}"]] for kind in ("p", "q", "s"))
        assert (product, sigmoid) == (
            layers.before[names[f"s{at + 1}"]] - 2,
            layers.before[names[f"s{at + 1}"]] - 1,
        )
        assert state < layers.before[names[f"s{at + 1}"]]
    assert layers.before == layers.after


def test_repeated_layers_are_folded_but_for_the_first_block() -> None:
    drawing = drawing_of(blocks(10))
    layers = layers_of(drawing)
    (band,) = overview(drawing, layers)
    assert band.text.startswith(("8 × the 3 layers", "9 × the 3 layers"))
    assert band.end - band.first == 3 * int(band.text.split()[0])


def test_long_stretches_without_changes_are_folded() -> None:
    quiet = "\n".join(
        f"q{at + 1} = {op}(q{at})" for at, op in enumerate(["Exp", "Sin", "Cos", "Tan", "Atan"])
    )
    text = f"""graph (x: f32[1,8,4,4], %w: f32[8,8,1,1]) {{
      q0 = Sqrt(x)
      {quiet}
      c = Conv(q5, %w)
      r = Relu(c)
      return r
    }}"""
    drawing = drawing_of(text)
    layers = layers_of(drawing)
    (band,) = overview(drawing, layers)
    folded = [
        op.op for op in drawing.before.operators if band.first <= layers.before.get(op.key, -1) < band.end
    ]
    assert band.text == "unchanged"
    assert "Conv" not in folded
    assert "Sin" in folded


def test_short_graphs_are_drawn_whole() -> None:
    drawing = drawing_of(CONVOLUTION)
    assert overview(drawing, layers_of(drawing)) == []


@pytest.mark.parametrize("seed", range(8))
def test_boxes_never_overlap_and_lines_run_down(seed: int) -> None:
    dice = random.Random(seed)
    rows = [dice.randint(1, 6) for _ in range(12)]
    boxes = {
        f"{layer}.{at}": Box(layer, dice.uniform(40, 160), 30.0)
        for layer, count in enumerate(rows)
        for at in range(count)
    }
    keys = list(boxes)
    edges = {
        (source, target)
        for target in keys
        for source in dice.sample(keys, 3)
        if boxes[source].layer < boxes[target].layer
    }
    layout = lay_out(boxes, sorted(edges), [30.0] * len(rows))
    for layer in range(len(rows)):
        row = sorted((layout.centres[key][0], boxes[key].width) for key in keys if boxes[key].layer == layer)
        for (x, width), (next_x, next_width) in itertools.pairwise(row):
            assert next_x - x >= (width + next_width) / 2
    for key, (x, y) in layout.centres.items():
        assert boxes[key].width / 2 <= x <= layout.width - boxes[key].width / 2
        assert 0 < y < layout.height
    sources = {source for source, _ in edges}
    assert set(layout.ways) == sources
    for ways in layout.ways.values():
        for points in ways:
            assert all(above[1] <= below[1] for above, below in itertools.pairwise(points))
    ends = [points[-1] for ways in layout.ways.values() for points in ways]
    for _, target in edges:
        x, y = layout.centres[target]
        assert any(abs(end[0] - x) < 1e-6 and abs(end[1] - (y - 15)) < 1e-6 for end in ends)


def test_a_chain_is_straight() -> None:
    boxes = {at: Box(at, 50.0 + 20 * at, 30.0) for at in range(5)}
    layout = lay_out(boxes, [(at, at + 1) for at in range(4)], [30.0] * 5)
    assert max(x for x, _ in layout.centres.values()) - min(x for x, _ in layout.centres.values()) < 1.0
