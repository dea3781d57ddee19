"""Commands in slices of time: what is done stays done, what was cut off runs again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="tables are read with typer's errors")

from baselines.shared.steps import LOG, TABLE, TIMES, TOO_LONG, Step, done, run_slice


def step(name: str, code: str) -> Step:
    return Step(name, (sys.executable, "-c", code, "{csv}"))


def noting(name: str, folder: Path, status: int = 0) -> Step:
    """Appends its name to a file, and writes a row of times."""
    table = f"open(sys.argv[1], 'w').write('model,ms\\n{name},1\\n')"
    return step(
        name,
        f"import sys; open({str(folder / 'ran')!r}, 'a').write({name!r}); print('says', {name!r}); {table};"
        f"sys.exit({status})",
    )


def test_a_second_run_goes_on_behind_the_first(tmp_path: Path) -> None:
    first = [noting("a", tmp_path), noting("b", tmp_path, status=3)]
    assert run_slice(first, tmp_path, 60) == []
    assert done(tmp_path) == {"a": "0", "b": "3"}
    assert run_slice([*first, noting("c", tmp_path)], tmp_path, 60) == []
    assert (tmp_path / "ran").read_text() == "abc"
    assert (tmp_path / TIMES).read_text().splitlines() == ["model,ms", "a,1", "b,1", "c,1"]
    assert "says b" in (tmp_path / LOG).read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([TABLE, LOG, TIMES, "ran"])


def test_nothing_is_begun_when_the_time_is_up(tmp_path: Path) -> None:
    steps = [noting("a", tmp_path), noting("b", tmp_path)]
    assert run_slice(steps, tmp_path, 10) == ["b"]  # too little time for another one
    assert run_slice(steps, tmp_path, 10) == []


def test_a_step_that_takes_longer_than_a_slice_is_not_tried_for_ever(tmp_path: Path) -> None:
    endless = step("endless", "import time; time.sleep(600)")
    assert run_slice([endless], tmp_path, 1) == []
    assert done(tmp_path) == {"endless": TOO_LONG}


def test_a_step_that_the_end_cuts_off_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.shared.steps._LEAST_S", 0.0)
    steps = [noting("a", tmp_path), step("endless", "import time; time.sleep(600)")]
    assert run_slice(steps, tmp_path, 2) == ["endless"]
    assert done(tmp_path) == {"a": "0"}
