"""Peers in lower precision, their errors, and the comparison at no more than their errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

from baselines import precision
from baselines.peers.case import PEERS, ROUNDED_PEERS, Case
from baselines.peers.measured import Row, Settings, measure_models, rms_error
from baselines.peers.registry import installed_peers
from baselines.shared.tables import of
from tests.baselines.test_commands import rows, run
from torchrlopt.executors.precision.rungs import has_bfloat16


def measured(cases: list[Case], caches: Path) -> list[Row]:
    return next(measure_models([cases], Settings(rounds=1, round_s=0.01), caches, lambda phase: None))


def case(peer: str, **options: str) -> Case:
    return Case("ensemble_mlp", peer, batch=1, dtype="float32", threads=1, **options)


def test_rms_error_is_that_of_the_worst_floating_output() -> None:
    reference = [np.array([3.0, np.inf, 4.0]), np.array([1.0, 1.0]), np.array([7])]
    outputs = [np.array([3.0, np.inf, 3.0], np.float32), np.array([1.0, 1.0]), np.array([8])]
    assert rms_error(outputs, reference) == pytest.approx(0.2)
    assert rms_error([np.array([1.0, np.nan])], [np.array([1.0, 1.0])]) == np.inf
    assert rms_error([np.array([0.5])], [np.array([0.0])]) == 0.5


def test_a_rounded_peer_may_be_wrong_up_to_its_budget(tmp_path: Path) -> None:
    cases = [case("eager"), case("eager_autocast"), case("eager_autocast", max_error="1e-4")]
    eager, free, bound = measured(cases, tmp_path)
    assert (eager.reason, free.reason) == ("", "")
    assert eager.rms_error is not None
    assert free.rms_error is not None
    assert eager.rms_error < 1e-6 < 1e-4 < free.rms_error < 0.05
    assert bound.reason == f"wrong result: error {free.rms_error:.1e} by root mean squares, limit 1.0e-04"


@pytest.mark.nightly
def test_torchrlopt_keeps_its_budget(tmp_path: Path) -> None:
    options = {"executor": "eager", "weights": "check", "searcher": "agent", "max_error": "1e-2"}
    found = measured([case("eager"), case("torchrlopt", **options)], tmp_path)[1]
    assert found.reason == ""
    assert found.rms_error is not None
    assert found.rms_error <= 1e-2
    assert (found.rms_error > 1e-4) == has_bfloat16(torch.device("cpu"))


@pytest.mark.nightly
@pytest.mark.parametrize("peer", ROUNDED_PEERS)
def test_each_rounded_peer_rounds(peer: str, tmp_path: Path) -> None:
    if peer not in installed_peers(ROUNDED_PEERS):
        pytest.skip(f"the package of {peer} is not installed")
    found = measured([case("eager"), case(peer)], tmp_path)[1]
    assert found.reason == ""
    assert found.rms_error is not None
    assert found.rms_error < 0.05
    if peer != "openvino_default":  # rounds only where the processor has bfloat16
        assert found.rms_error > 1e-3


def test_budgets_are_labels_and_numbers() -> None:
    free, bound, named = case("torchrlopt"), case("torchrlopt", max_error=".01"), case("torchrlopt")
    named = dataclasses.replace(named, executor="eager", max_error="bfloat16")
    assert [each.is_rounded for each in (free, bound, named)] == [False, True, True]
    assert [each.budget for each in (free, bound, named)] == [np.inf, 0.01, np.inf]
    assert named.label == "torchrlopt/eager/bfloat16"


def points() -> pd.DataFrame:
    columns = ["model", "peer", "error", "ms", "processor"]
    given = [
        ("a", "eager", 1e-7, 8.0, 8.0),
        ("a", "openvino", 2e-8, 4.0, 4.0),
        ("a", "openvino_int8", 2e-2, 1.0, 0.5),
        ("a", "torchrlopt/default", 1.5e-7, 4.0, 4.0),
        ("a", "torchrlopt/default/1e-3", 1.5e-7, 4.0, 4.0),
        ("a", "torchrlopt/default/3e-3", 1e-3, 1.9, 1.9),  # faster by luck
        ("a", "torchrlopt/default/1e-2", 9e-3, 2.0, 2.0),
        ("a", "torchrlopt/default/3e-2", 2.1e-2, 0.5, 0.5),
        ("b", "eager", 1e-7, 2.0, 2.0),
        ("b", "openvino_int8", 1e-3, 1.0, 1.0),
        ("b", "torchrlopt/default/1e-2", 5e-3, 0.1, 0.1),
    ]
    return pd.DataFrame(given, columns=columns)


def test_only_budgets_with_no_more_error_count() -> None:
    ratios = precision.at_no_more_error(points())
    assert ratios.loc["a"].to_dict() == {"eager": 2.0, "openvino": 1.0, "openvino_int8": 0.5}
    assert "b" not in ratios.index
    assert precision.at_no_more_error(points(), "processor").at["a", "openvino_int8"] == 0.25
    found = points().assign(least=points().ms)
    (row,) = precision.summary(found).query("peer == 'openvino_int8'").to_dict("records")
    assert (row["models"], row["geomean"], row["by processor"]) == ("1 of 2", "0.50x", "0.25x")


def test_no_peer_of_the_usual_table_is_rounded() -> None:
    assert not set(PEERS) & set(ROUNDED_PEERS)


@pytest.mark.nightly
def test_the_command_measures_error_and_time(tmp_path: Path) -> None:
    file, plot = tmp_path / "precision.csv", tmp_path / "plot.png"
    arguments = ("--peers", "eager_autocast", "--rounds", "2", "--csv", str(file), "--plot", str(plot))
    shown = run("precision", "ensemble_mlp", *arguments)
    assert "eager_autocast" in shown
    frame = rows(file, "precision")
    errors = of(frame, metric="rms error").set_index("peer").value
    assert errors["eager"] < 1e-6 < 1e-4 < errors["eager_autocast"]
    found = precision.points(frame)
    assert (found.least <= found.ms).all()
    assert (found.processor > 0).all()
    assert plot.read_bytes().startswith(b"\x89PNG")
    run("precision", "ensemble_mlp", *arguments, "--resume")  # nothing is left to measure
    pd.testing.assert_frame_equal(rows(file, "precision"), frame)
