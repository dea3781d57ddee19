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
