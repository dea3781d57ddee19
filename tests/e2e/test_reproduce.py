"""The thesis's experiments by one command: training/reproduce.py and training/experiments/."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from training.experiments import runs, sampling
from training.experiments.command import main
from training.experiments.cores_run import cores
from training.experiments.experiment import write_csv
from training.experiments.intervals import half_width
from training.experiments.runs import Run, Scale, Workplace, make_all, path_of, this_machine

THESIS = ("table6.1", "table6.2", "table6.3", "fig6.3")
APP = typer.Typer(add_completion=False)
APP.command()(main)


def reproduce(out: Path, *arguments: str) -> str:
    options = ["--share", "0.001", "--seeds", "1", "--collector", "threads", "--out", str(out)]
    result = CliRunner().invoke(APP, [*arguments, *options])
    assert result.exit_code == 0, result.output
    return (out / "REPORT.md").read_text(encoding="utf-8")


def test_everything_is_reproduced_and_goes_on_where_it_was_left(tmp_path: Path) -> None:
    first = reproduce(tmp_path, "fig6.3", "table6.2")
    assert "## fig6.3" in first
    assert "## table6.1" not in first
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}
    report = reproduce(tmp_path, *THESIS)
    again = "--share 0.001 --seeds 1 --collector threads` on"
    assert all(again in each for each in report.split("\n## ")[1:])
    assert all(path.stat().st_mtime_ns == when for path, when in made.items()), "no run is made twice"
    for name in THESIS:
        assert f"## {name}" in report
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        rows = list(csv.DictReader((tmp_path / f"{name}.csv").open(encoding="utf-8")))
        assert len(rows) > 3
    assert "DIFFER" not in report
    assert "| NO |" not in report
    curves = list(csv.DictReader((tmp_path / "fig6.3.csv").open(encoding="utf-8")))
    assert all(row["sequential"] == row["distributed"] for row in curves)
    hashes = list(csv.DictReader((tmp_path / "table6.1.csv").open(encoding="utf-8")))
    for function in ("sphere", "ackley", "rosenbrock"):
        assert len({row["data_sha256"] for row in hashes if row["function"] == function}) == 1
    assert re.search(r"\| 4 \| .* \| yes \| 8259 \| 3.67 \| 3.64 \|", report), (
        "the thesis's values beside ours"
    )


def test_a_difference_would_be_told(tmp_path: Path) -> None:
    reproduce(tmp_path, "fig6.3")
    path = next(each for each in (tmp_path / "runs").iterdir() if "threads3" in each.name)
    found = json.loads(path.read_text(encoding="utf-8"))
    found["outcome"]["errors"][-1] += 1e-12
    path.write_text(json.dumps(found), encoding="utf-8")
    assert "THE CURVES DIFFER" in reproduce(tmp_path, "fig6.3")


def test_a_kept_run_names_the_machine_that_made_it(tmp_path: Path) -> None:
    reproduce(tmp_path, "fig6.3")
    path = next(each for each in (tmp_path / "runs").iterdir() if "threads3" in each.name)
    found = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**found, "machine": "8 cores of another"}), encoding="utf-8")
    report = reproduce(tmp_path, "fig6.3")
    assert "8 cores of another" in report
    assert this_machine() in report, "the other runs were made here"


@dataclasses.dataclass(frozen=True)
class Settings(Run[Scale]):
    """A run whose name leaves out what its results depend on."""

    alpha: float
    jobs: int = dataclasses.field(default=1, compare=False)

    @property
    def name(self) -> str:
        return "settings"

    def make(self, tell: Callable[[], None]) -> Scale:
        tell()
        return Scale(math.nan, 1)

    def read(self, kept: Mapping[str, Any]) -> Scale:
        return Scale(**kept)


@dataclasses.dataclass(frozen=True)
class Failing(Run[Scale]):
    """The first one fails, and the others wait for it; all say that they were begun."""

    out: Path
    number: int

    @property
    def name(self) -> str:
        return f"failing{self.number}"

    def make(self, tell: Callable[[], None]) -> Scale:
        (self.out / f"begun{self.number}").touch()
        if self.number == 0:
            raise OSError("on purpose")
        while not (self.out / "begun0").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        return Scale(1.0, 1)

    def read(self, kept: Mapping[str, Any]) -> Scale:
        return Scale(**kept)


def test_files_of_runs_differ_by_all_that_they_depend_on(tmp_path: Path) -> None:
    one = path_of(Settings(1.0), tmp_path)
    assert path_of(Settings(1.5), tmp_path) != one
    assert path_of(Settings(1.0, jobs=2), tmp_path) == one, "results do not depend on it"


def test_what_is_kept_is_json_as_others_read_it(tmp_path: Path) -> None:
    make_all([Settings(1.0)], Workplace(tmp_path))

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    text = path_of(Settings(1.0), tmp_path).read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse)["outcome"] == {
        "share": None,
        "seeds": 1,
        "graphs": [],
        "minutes": 30.0,
    }


@pytest.mark.parametrize("wrong", [["table9.9"], ["all", "--collector", "cluster"]])
def test_what_is_not_there_is_refused_with_what_is(wrong: list[str]) -> None:
    result = CliRunner().invoke(APP, wrong)
    assert result.exit_code == 2
    assert "there are:" in result.output


def test_scales_are_shares_of_the_papers_steps() -> None:
    assert Scale(1.0, 3).steps(5000) == 5000
    assert Scale(0.01, 3).steps(5000) == 50
    assert Scale(0.0001, 3).steps(5000) == 10


def test_intervals_are_students() -> None:
    values = np.array([1.0, 2.0, 3.0])
    assert half_width(values) == pytest.approx(4.303 / 3**0.5, rel=1e-3)


def test_pairs_that_differ_by_more_than_chance() -> None:
    values = np.array([1.0, 2.0, 3.0])
    sure, unsure = values + np.array([1.0, 1.1, 0.9]), values + np.array([1.0, -1.1, 0.9])
    assert sampling.differing({"a": values, "b": sure}) == {frozenset("ab")}
    assert not sampling.differing({"a": values, "b": unsure, "c": values})
    assert not sampling.differing({"a": values[:1], "b": values[:1] + 1}), "one run tells nothing"
    close = values + np.array([1.0, 1.3, 0.7])  # p = 0.029, and of six pairs that is no evidence
    others = {name: values + np.array([n, -n, 2.0 * n]) for n, name in enumerate("cd", start=1)}
    assert sampling.differing({"a": values, "b": close}) == {frozenset("ab")}
    assert not sampling.differing({"a": values, "b": close, **others})


def test_texts_with_commas_are_one_field(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_csv(path, ("what", "value"), [("a step, imagined", 1 / 3), ("plain", 2)])
    assert path.read_text(encoding="utf-8") == 'what,value\n"a step, imagined",0.333333\nplain,2\n'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["all", "fig4.33"], "there is no experiment fig4.33"),
        (["table6.2", "--minutes", "5"], "--graphs and --minutes are only for"),
        (["table6.2", "--graphs", "toy_bert"], "--graphs and --minutes are only for"),
        (["fig4.3", "--graphs", ","], "no graph given"),
        (["fig6.3", "--collector", "in_process"], "there is no collector in_process"),
        (["fig6.3", "--collector", "threads", "--ray", "10.0.0.1:6379"], "for --collector ray"),
        (["fig6.3", "--out", "/dev/null/runs"], "there can be no folder"),
        (["fig4.3", "--graphs", "resnet18,nope"], "there is no graph nope"),
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


def test_two_commands_share_a_folder(tmp_path: Path) -> None:
    """What one command makes the other one takes, and the report has the sections of both."""
    both = ["--share", "0.001", "--seeds", "1", "--out", str(tmp_path)]
    commands = [
        subprocess.Popen([sys.executable, "training/reproduce.py", *names, *both], stderr=subprocess.PIPE)
        for names in (["fig6.3", "table6.2"], ["fig6.3", "table6.3"])
    ]
    for command in commands:
        _, told = command.communicate(timeout=300)
        assert command.returncode == 0, told.decode()
    report = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert re.findall(r"^## ([\w.]+):", report, flags=re.MULTILINE) == ["table6.2", "table6.3", "fig6.3"]


def test_only_one_measures_at_a_time(tmp_path: Path) -> None:
    run = next(iter(cores(Scale(0.001, 1))))
    assert run.is_measurement
    with ThreadPoolExecutor(1) as other:
        with runs.lock(tmp_path, runs.MEASURING):
            made = other.submit(runs.make, run, tmp_path)
            with pytest.raises(TimeoutError):
                made.result(timeout=0.5)
            assert not path_of(run, tmp_path).exists()
        made.result(timeout=120)
    assert path_of(run, tmp_path).exists()


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    result = CliRunner().invoke(APP, ["table4.1", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "there can be no folder" in result.output


def test_what_waits_is_not_begun_after_a_failure(tmp_path: Path) -> None:
    several = [Failing(tmp_path, number) for number in range(24)]
    with pytest.raises(OSError, match="on purpose"):
        make_all(several, Workplace(tmp_path, jobs=2))
    assert len(list(tmp_path.glob("begun*"))) < len(several) / 2


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    reproduce(tmp_path, "fig6.3")
    path = next((tmp_path / "runs").glob("*.json"))
    for text in ('{"outcome": ', "{}", "5", '{"outcome": {"other": 1}, "cpu_share": 1.0}'):
        path.write_text(text, encoding="utf-8")
        result = CliRunner().invoke(
            APP, ["fig6.3", "--share", "0.001", "--collector", "threads", "--out", str(tmp_path)]
        )
        assert result.exit_code == 2
        assert path.stem[-8:] in result.output
