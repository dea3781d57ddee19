"""The papers' experiments with one command: training/reproduce.py and training/papers/."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from training.papers import rows
from training.papers.graphs import TINY
from training.papers.reproduction import EXPERIMENTS, OF_ROWS, main
from training.papers.runner import Scale, make_all, path_of, read

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "training" / "results"
APP = typer.Typer(add_completion=False)
APP.command()(main)
SCALE = Scale(0.001, 1)


def reproduce(out: Path, *arguments: str) -> str:
    usual = [] if "--data" in arguments else ["--share", "0.001", "--seeds", "1"]
    result = CliRunner().invoke(APP, [*arguments, *usual, "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return (out / "REPORT.md").read_text(encoding="utf-8")


def check_section(name: str, out: Path, report: str) -> None:
    """It says what it is and how it was made, has a table, and its CSV and pictures are there and sound."""
    (section,) = [part for part in report.split("\n## ") if part.startswith(f"{name}: ")]
    assert section.startswith(f"{name}: {EXPERIMENTS[name].title}\n")
    command = (
        "-m training.dear_precision" if name == "dear_precision" else f"training/reproduce.py {name} --share"
    )
    assert f"Made by `python {command} " in section
    assert "| --- |" in section
    pictures = re.findall(r"\]\((.*?\.png)\)", section)
    assert f"{name}.png" in pictures or name == "dear_precision"
    for picture in pictures:
        assert (out / picture).read_bytes().startswith(b"\x89PNG")


def runs_in(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}


@pytest.mark.nightly
def test_all_figures_and_tables_are_drawn_from_the_committed_results(tmp_path: Path) -> None:
    report = reproduce(tmp_path, "all", "--data", str(RESULTS))
    for name in EXPERIMENTS:
        check_section(name, tmp_path, report)
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {path.name for path in RESULTS.glob("*.png")}
    assert report == (RESULTS / "REPORT.md").read_text(encoding="utf-8"), (
        "the committed report is that of them"
    )


@pytest.mark.nightly
def test_runs_are_kept_after_a_kill_and_other_sections_stay(tmp_path: Path) -> None:
    (tmp_path / "REPORT.md").write_text("# Old\n\n## fig4.1: Latencies\n\nOld.\n", encoding="utf-8")
    told = [sys.executable, str(ROOT / "training" / "reproduce.py"), "table6.2", "fig6.3", "--share", "0.001"]
    process = subprocess.Popen([*told, "--out", str(tmp_path)], start_new_session=True)
    while process.poll() is None and len(runs_in(tmp_path)) < 3:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)  # its workers too, as at the end of a session
    process.wait()
    kept = runs_in(tmp_path)
    report = reproduce(tmp_path, "table6.2", "fig6.3")
    now = runs_in(tmp_path)
    assert {path: now[path] for path in kept} == kept, "what was made before the kill is not made again"
    assert (
        report.index("## fig4.1: Latencies\n\nOld.")
        < report.index("## table6.2:")
        < report.index("## fig6.3:")
    )
    for name in ("table6.2", "fig6.3"):
        check_section(name, tmp_path, report)
    curves = pd.read_csv(tmp_path / "fig6.3.csv")
    assert (curves["sequential"] == curves["distributed"]).all()
    path = next(each for each in now if each.stem.split("-")[-2] == "3")  # of three workers
    found = json.loads(path.read_text(encoding="utf-8"))
    found["data"] = "other"
    path.write_text(json.dumps({**found, "made": {**found["made"], "machine": "8 cores of another"}}))
    report = reproduce(tmp_path, "fig6.3")
    assert "| NO |" in report, "a difference would be told"
    assert "8 cores of another" in report


def test_searches_and_properties(tmp_path: Path) -> None:
    report = reproduce(tmp_path, "table4.1", "fig4.2")
    for name in ("table4.1", "fig4.2"):
        check_section(name, tmp_path, report)
    assert pd.read_csv(tmp_path / "table4.1.csv")["layers"].tolist() == [48]
    gains = pd.read_csv(tmp_path / "fig4.2.csv").groupby(["searcher", "alpha", "rules"])["gain"]
    assert len(gains) == 6
    assert (gains.diff().dropna() > -1e-12).all(), "of undisturbed prices none is lost again"


@pytest.mark.nightly
@pytest.mark.parametrize("names", [["table4.2"], ["fig4.5"]])
def test_what_is_measured_is_reported(names: list[str], tmp_path: Path) -> None:
    report = reproduce(tmp_path, *names)
    for name in names:
        check_section(name, tmp_path, report)
    assert "| NO |" not in report


@pytest.mark.nightly
def test_figures_of_rows(tmp_path: Path) -> None:
    report = reproduce(tmp_path, *OF_ROWS)
    for name in OF_ROWS:
        check_section(name, tmp_path, report)
    made = runs_in(tmp_path)
    assert reproduce(tmp_path, "fig4.3", "table4.3") == report, "the report of the same runs is the same"
    assert runs_in(tmp_path) == made
    runs = rows.latencies(SCALE)
    kept = read(runs["row", "wm", TINY, 0], tmp_path)
    np.testing.assert_allclose(kept["real"], kept["played"]["gains"], atol=1e-5)
    latencies = pd.read_csv(tmp_path / "fig4.3.csv")
    assert (latencies["ratio"] > 0.1).all()
    assert latencies[latencies["plan"] == "mf"]["predicted_gain"].iloc[0] == pytest.approx(
        read(runs["row", "mf", TINY, 0], tmp_path)["played"]["best"], abs=1e-5
    )
    on_gpu = pd.read_csv(tmp_path / "toy_bert.csv").set_index("device").loc["cuda"]
    assert on_gpu["eager"].isna().all(), "nothing ran on one"


def test_a_training_that_was_killed_goes_on(tmp_path: Path) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run = rows.training_of("mf", TINY, 3, SCALE, updates=3)
    make_all([run], straight)
    folder = broken / "runs" / path_of(run, broken).stem
    trainer = rows.trainer_in(folder, **dict(run.given))
    next(iter(trainer.updates()))
    trainer.save()
    make_all([run], broken)
    one, other = read(run, straight), read(run, broken)
    assert one["played"]["steps"] == other["played"]["steps"]
    assert one["log"]["mean_return"] == other["log"]["mean_return"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["all", "fig4.33"], "no experiment named 'fig4.33'"),
        (["table6.2", "--minutes", "5"], "--graphs and --minutes are only for"),
        (["table6.2", "--graphs", "toy_bert"], "--graphs and --minutes are only for"),
        (["fig4.3", "--graphs", ","], "no graph given"),
        (["fig6.3", "--out", "/dev/null/runs"], "there can be no folder"),
        (["fig4.3", "--graphs", "resnet18,nope"], "no graph named 'nope'"),
        (["toy_bert", "fig4.3", "--graphs", "resnet50"], "toy_bert are of the toy BERT: add toy_bert"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_is_refused(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == 2
    assert said in " ".join(re.sub("[│╭╮╰╯─]", " ", result.output).split())
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_data_that_are_not_there_are_refused(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "table4.1.csv", tmp_path)
    result = CliRunner().invoke(APP, ["fig4.2", "--data", str(tmp_path), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "fig4.2" in re.sub(r"[\s│]", "", result.output), "the path may be wrapped"
