"""The fidelity benchmark: statistics and files on made-up points, one small model for real."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="rank correlations come from scipy")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from rich.console import Console

from baselines import fidelity
from baselines.fidelity import Point, Settings


def point(model: str, variant: int, estimated: float, measured: float) -> Point:
    return Point(model, variant, "eager", estimated, measured, steps=variant, measured_share=1.0)


def test_error_is_relative_to_the_measured_time() -> None:
    assert point("a", 0, 3.0, 2.0).error == 0.5
    assert point("a", 0, 1.0, 2.0).error == 0.5


def test_perfect_estimates() -> None:
    points = [
        point(model, i, scale * (i + 1), scale * (i + 1))
        for model, scale in (("a", 1), ("b", 10))
        for i in range(5)
    ]
    found = fidelity.fidelity(points)
    assert (found.median_error, found.p90_error) == (0, 0)
    assert found.spearman == pytest.approx(1)
    assert found.kendall == pytest.approx(1)


def test_kendall_looks_inside_models_and_spearman_across() -> None:
    """Models are told apart by size alone; within each the order is wrong."""
    points = [
        point(model, i, scale - i * 0.01, scale + i * 0.01)
        for model, scale in (("a", 1.0), ("b", 10.0), ("c", 100.0))
        for i in range(4)
    ]
    found = fidelity.fidelity(points)
    assert found.kendall == pytest.approx(-1)
    assert found.spearman > 0.7


def test_errors_are_quantiles() -> None:
    points = [point("a", i, (1 + i / 100) * (i + 1), i + 1.0) for i in range(11)]
    found = fidelity.fidelity(points)
    assert found.median_error == pytest.approx(0.05)
    assert found.p90_error == pytest.approx(0.09)


def test_csv_round_trip(tmp_path: Path) -> None:
    points = [point("a", i, i + 0.5, i + 0.25) for i in range(3)]
    path = tmp_path / "out.csv"
    fidelity.write_csv(points, path)
    assert fidelity.read_csv(path) == points
    with path.open() as file:
        assert next(csv.reader(file))[:5] == ["model", "variant", "executor", "estimated_ms", "measured_ms"]
    assert fidelity.read_csv(tmp_path / "none.csv") == []


def test_another_table_is_not_taken_for_ours(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("model,peer\nresnet18,eager\n")
    with pytest.raises(typer.BadParameter, match="expected the columns"):
        fidelity.read_csv(path)


def test_complete_models_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plot = tmp_path / "out.csv", tmp_path / "out.png"
    fidelity.write_csv([point("resnet18", i, i + 1.0, i + 1.1) for i in range(3)], path)
    measured: list[str] = []

    def measure(model: str, settings: Settings) -> list[Point]:
        measured.append(model)
        return [point(model, i, i + 2.0, i + 2.1) for i in range(settings.variants + 1)]

    monkeypatch.setattr(fidelity, "measure_apart", measure)
    fidelity.run(["resnet18", "nasrnn"], Settings(variants=2), path, plot)
    assert measured == ["nasrnn"]
    assert {p.model for p in fidelity.read_csv(path)} == {"resnet18", "nasrnn"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_table_has_a_row_for_each_model_and_one_for_all() -> None:
    points = [point(model, i, i + 1.0, i + 1.1) for model in ("resnet18", "nasrnn") for i in range(3)]
    console = Console(width=160, record=True)
    console.print(fidelity.render(points))
    text = console.export_text()
    assert text.count("Kendall") == 3
    assert "Spearman 1.000" in text


@pytest.mark.slow
def test_a_small_model_for_real() -> None:
    points = fidelity.measure("ensemble_mlp", Settings(variants=2, profile_s=1, threads=1))
    assert [p.variant for p in points] == [0, 1, 2]
    assert all(p.measured_ms > 0 and 0 < p.estimated_ms < math.inf for p in points)
    assert [p.steps > 0 for p in points] == [False, True, True]
    assert points[0].measured_share == pytest.approx(1), "the original was profiled"
    # No assertion on accuracy: tests run beside each other.
