"""`training/reproduce.py --quick` as a user runs it: into a new folder, killed midway, and resumed.

All but what takes long and is made by tests of its own: what is made of trainings by
`test_reproduce_rows.py`, what is measured by `test_reproduce_dissertation.py` and
`test_reproduce_measurements.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.reproduced import check_section
from training.experiments.dissertation.of_rows import EXPERIMENTS_OF_ROWS
from training.experiments.reproduction import EXPERIMENTS
from training.experiments.runs import Scale, Workplace, path_of

ROOT = Path(__file__).resolve().parents[2]
SHARE = os.environ.get("REPRODUCE_SHARE", "0.001")  # of the papers' steps; the smallest there is
KILLED_AFTER = 3  # runs
ELSEWHERE = {*EXPERIMENTS_OF_ROWS, "fig4.1", "table4.2", "fig4.5", "measurements", "efficiency"}
NAMES = [name for name in EXPERIMENTS if name not in ELSEWHERE]


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
        check_section(name, out, report)
        assert all(path_of(run, out).exists() for run in experiment.runs(scale, place)), name
    assert "this is a defect" not in report
