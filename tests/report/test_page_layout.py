"""Rows and bands: related nodes are side by side, and repeated parts are folded."""

from __future__ import annotations

import pytest

from tests.report.page_cases import CONVOLUTION, blocks, report_of, tangle
from torchrlopt.report.drawing import Drawing
from torchrlopt.report.page.layers import bands_of, rows_of


def drawing_of(text: str) -> Drawing:
    return report_of(text).records[0].draw()


@pytest.mark.parametrize(
    "text", [CONVOLUTION, blocks(2), blocks(9), *(tangle(seed, 60) for seed in range(6))]
)
def test_edges_lead_to_lower_layers(text: str) -> None:
    drawing = drawing_of(text)
    layers = rows_of(drawing)
    for graph, layer in ((drawing.before, layers.before), (drawing.after, layers.after)):
        for each in graph.operators:
            for key in each.inputs:
                if key in layer and each.key in layer:
                    assert layer[key] < layer[each.key]
    assert {*layers.before.values(), *layers.after.values()} == set(range(layers.count))


def test_what_survives_stands_side_by_side() -> None:
    drawing = drawing_of(CONVOLUTION)
    layers = rows_of(drawing)
    (transpose,) = [each.key for each in drawing.before.operators if each.op == "Transpose"]
    assert layers.before[transpose] == layers.after[transpose]
    (relu,) = [each.key for each in drawing.before.operators if each.op == "Relu"]
    (fused,) = [each.key for each in drawing.after.operators if each.op == "FusedConv"]
    assert layers.after[fused] == layers.before[relu], "where the last one stood that it comes from"


def test_what_was_made_stands_where_it_was_made_of() -> None:
    """Also where nothing survives that would hold it there."""
    chain = "\n".join(f"c{at} = Conv(r{at}, %w) r{at + 1} = Relu(c{at})" for at in range(4))
    drawing = drawing_of(f"graph (r0: f32[1,8,4,4], %w: f32[8,8,1,1]) {{ {chain} return r4 }}")
    rows = rows_of(drawing)
    relus = [rows.before[each.key] for each in drawing.before.operators if each.op == "Relu"]
    fused = [rows.after[each.key] for each in drawing.after.operators if each.op == "FusedConv"]
    assert fused == relus


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
    layers = rows_of(drawing)
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
    layers = rows_of(drawing)
    (band,) = bands_of(drawing, layers)
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
    layers = rows_of(drawing)
    (band,) = bands_of(drawing, layers)
    folded = [
        op.op for op in drawing.before.operators if band.first <= layers.before.get(op.key, -1) < band.end
    ]
    assert band.text == "unchanged"
    assert "Conv" not in folded
    assert "Sin" in folded


def test_short_graphs_are_drawn_whole() -> None:
    drawing = drawing_of(CONVOLUTION)
    assert bands_of(drawing, rows_of(drawing)) == []
