"""Plans with and without the generated substitutions, and what fires: baselines/library_gain.py."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from typer.testing import CliRunner

from baselines import library_gain
from baselines.library_gain import COLUMNS, ModelGain
from torchrlopt import _C
from torchrlopt.api.cli.app import app as cli
from torchrlopt.errors import OptionsError
from torchrlopt.substitutions import foundation_text, hand_written_text, load_library

app = typer.Typer()
app.command()(library_gain.main)


@pytest.mark.usefixtures("fresh_dynamo")
def test_plans_of_one_model(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    result = CliRunner().invoke(app, ["--models", "nasrnn", "--csv", str(path)])
    assert result.exit_code == 0, result.output
    assert re.search(r"\d+ of \d+ substitutions fire on at least one of 1 models", result.output)
    with path.open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert tuple(row) == COLUMNS
    assert float(row["hand_gain"]) > 1
    assert float(row["all_ms"]) <= float(row["before_ms"])
    assert int(row["fires_hand"]) > 3


@pytest.mark.usefixtures("fresh_dynamo")
def test_firing_counts_what_the_plan_uses() -> None:
    hand = _C.Library(hand_written_text(), allow_assumed=False)
    gain = library_gain.gain_of("ensemble_mlp", 1, "greedy", hand)
    assert "merge_linear_relu_shared_input" in gain.fires
    assert gain.fires <= set(load_library(with_generated=True).names)


def test_keeping_counts_needs_the_whole_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[object] = []
    monkeypatch.setattr(library_gain, "measure_library", lambda *arguments: planned.append(arguments))
    result = CliRunner().invoke(app, ["--models", "nasrnn", "--write-fires"])
    assert result.exit_code == 2
    assert "needs all models" in result.output
    assert not planned, "it is refused before hours of planning"


def test_summary_names_generated_ones() -> None:
    gains = [
        ModelGain("a", 4.0, 2.0, 1.0, {"fuse_conv_relu", "gen_00000001"}, {"gen_00000001": 2}),
        ModelGain("b", 2.0, 2.0, 2.0, {"fuse_conv_relu"}, {}),
    ]
    lines = library_gain.summary(gains)
    assert lines[0].startswith("2 of ")
    assert "1.414x hand-written, 2.000x with the generated ones" in lines[1]
    assert lines[2] == "better with generated ones: a; in the best plans: gen_00000001"
    assert gains[0].cells()["generated_used"] == "gen_00000001:2"


def test_counts_are_kept_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_gain, "FIRES", tmp_path / "fires.json")
    library_gain.keep_fires([ModelGain("a", 1, 1, 1, {"x", "y"}), ModelGain("b", 1, 1, 1, {"x"})])
    assert (tmp_path / "fires.json").read_text() == '{\n "x": [\n  "a",\n  "b"\n ],\n "y": [\n  "a"\n ]\n}\n'


def test_what_the_generator_starts_from_lacks_what_it_can_find() -> None:
    base = _C.Library(foundation_text())
    assert {base.family(name) for name in base.names}.isdisjoint(
        {"algebra", "convolution", "merge", "movement"}
    )
    assert "fold_batchnorm_into_conv" in base.names


@pytest.mark.usefixtures("fresh_dynamo")
def test_alone(tmp_path: Path) -> None:
    """What a machine finds, in the place of what people wrote about the same operators."""
    arguments = ["substitutions", "generate", "--alone", "--depth", "2", "--world", "matrix"]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    compared = CliRunner().invoke(app, ["--models", "nasrnn", "--alone", str(tmp_path)])
    assert compared.exit_code == 0, compared.output
    base, alone = re.findall(r"(\d\.\d{3})x", compared.output.splitlines()[-1])
    assert 1.0 < float(base) <= float(alone)
    refused = CliRunner().invoke(cli, arguments)
    assert isinstance(refused.exception, OptionsError | SystemExit), "it does not go into the library"


def test_alone_needs_generated_substitutions(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="no generated substitutions"):
        library_gain.libraries_alone(tmp_path)
