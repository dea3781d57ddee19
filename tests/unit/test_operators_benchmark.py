"""The table of operators: what is counted as what, and that each way fills it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")
pytest.importorskip("onnxruntime", reason="one of the ways")

import typer

from baselines import operators


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mkldnn::_convolution_pointwise", "convolution"),
        ("FusedConv", "convolution"),
        ("aten::max_pool2d_with_indices", "pool"),
        ("mkldnn::_linear_pointwise", "product"),
        ("MatMul", "product"),
        ("aten::cat", "concat"),
        ("ReorderInput", "layout"),
        ("aten::hardsigmoid_", "elementwise"),
        ("graph_0_cpp_fused_hardswish_mul_3", "elementwise"),
        ("aten::empty", "rest"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert operators.kind_of(name) == kind


@pytest.mark.parametrize("way", ["eager", "onnxruntime"])
def test_products_of_a_model_of_products_are_found(way: str, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    operators.main(models="ensemble_mlp", ways=way, passes=1, calls=2, csv=path)
    (row,) = csv.DictReader(path.open(encoding="utf-8"))
    assert (row["model"], row["way"]) == ("ensemble_mlp", way)
    assert float(row["call_ms"]) > 0
    assert float(row["product"]) > 0
    assert float(row["convolution"]) == 0


def test_a_way_that_is_not_there() -> None:
    with pytest.raises(typer.BadParameter, match="no way named 'eagr'; did you mean 'eager'"):
        operators.main(ways="eagr")
