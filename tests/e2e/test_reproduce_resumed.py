"""`training/reproduce.py --quick` as a user runs it: into a new folder, killed midway, and resumed.

All but what is made of trainings, which `test_reproduce_rows.py` makes.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training.experiments.dissertation.of_rows import EXPERIMENTS_OF_ROWS
from training.experiments.experiment import Experiment
from training.experiments.reproduction import EXPERIMENTS
from training.experiments.runs import Scale, Workplace, path_of

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG"
SHARE = os.environ.get("REPRODUCE_SHARE", "0.001")  # of the papers' steps; the smallest there is
KILLED_AFTER = 3  # runs
NAMES = [name for name in EXPERIMENTS if name not in EXPERIMENTS_OF_ROWS]


def command(out: Path) -> list[str]:
    arguments = [*NAMES, "--quick", "--share", SHARE, "--seeds", "1", "--out", str(out)]
    return [sys.executable, str(ROOT / "training" / "reproduce.py"), *arguments]


def runs_in(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}


@pytest.mark.slow
def test_all_that_is_reproduced_survives_a_kill(tmp_path: Path) -> None:
    out = tmp_path / "reproduced"
    process = subprocess.Popen(
        command(out), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    while process.poll() is None and len(runs_in(out)) < KILLED_AFTER:
        time.sleep(0.05)
    assert process.poll() is None, process.stdout.read().decode()
    os.killpg(process.pid, signal.SIGKILL)  # its workers too, as at the end of a session
    process.communicate()
    kept = runs_in(out)
    assert not (out / "REPORT.md").exists(), "nothing is reported before all runs are made"

    done = subprocess.run(command(out), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("REPORT.md")
    now = runs_in(out)
    assert {path: now[path] for path in kept} == kept, "what was made before the kill is not made again"
    assert list(tmp_path.iterdir()) == [out], "nothing is written elsewhere"

    report = (out / "REPORT.md").read_text(encoding="utf-8")
    scale, place = Scale(float(SHARE), 1), Workplace(out)
    for name in NAMES:
        experiment = EXPERIMENTS[name]
        check(name, experiment, out, report)
        assert all(path_of(run, out).exists() for run in experiment.runs(scale, place)), name
    assert "this is a defect" not in report


def check(name: str, experiment: Experiment, out: Path, report: str) -> None:
    """Its section says what it is and how it was made, and every file that it names is there and sound."""
    sections = [part for part in report.split("\n## ") if part.startswith(f"{name}: ")]
    assert len(sections) == 1, name
    section = sections[0]
    assert section.startswith(f"{name}: {experiment.title}\n")
    assert f"reproduce.py {name} --share {float(SHARE):g} --seeds 1`" in section
    assert "| --- |" in section.replace("|---|", "| --- |"), f"{name} has no table"
    rows = list(csv.reader((out / f"{name}.csv").open(encoding="utf-8")))
    assert len(rows) > 1, name
    assert {len(row) for row in rows} == {len(rows[0])}, f"rows of {name}.csv are not equally long"
    for picture in [
        part.split(")")[0] for part in section.split("](")[1:] if part.split(")")[0].endswith(".png")
    ]:
        assert (out / picture).read_bytes().startswith(PNG), picture
    assert f"]({name}.png)" in section, f"{name} shows no picture"
