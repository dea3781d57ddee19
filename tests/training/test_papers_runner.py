"""Runs of experiments, with files named after all of their dependencies: training/papers/runner.py."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.training.papers_kinds import doubled, failing, timed
from torchrlopt.errors import OptionsError
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
from training.papers import latencies, rows, runner
from training.papers.reproduction import EXPERIMENTS
from training.papers.rows import rivals_on, training_of
from training.papers.runner import (
    Run,
    Scale,
    make,
    make_all,
    path_of,
    read,
    with_needs,
)

NOWHERE = Path("nowhere")
SCALE = Scale(0.001, 1)
RIVALS = rivals_on(SCALE, "toy_bert")["rivals", "toy_bert"]
TRAINING = training_of("mf", "toy_bert", 0, SCALE)
#: What does not know of substitutions: the functions of the thesis, and cores alone.
WITHOUT_LIBRARY = {"learned", "learned_timed", "cores"}


def _of_each_kind() -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for each in EXPERIMENTS.values():
        for run in with_needs(list(each.runs(SCALE).values())):
            found[run.name.partition(":")[2]].append(run)
    return found


def test_another_library_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    every = _of_each_kind()
    before = {name: [path_of(run, NOWHERE) for run in runs[:3]] for name, runs in every.items()}
    smaller = subset_of(load_library(), load_library().names[:-1])
    for name, module in list(sys.modules.items()):
        if name.startswith("training."):
            for function in ("load_library", "library"):
                if callable(getattr(module, function, None)):
                    monkeypatch.setattr(module, function, lambda *_: smaller)
    same = {
        name for name, paths in before.items() if [path_of(run, NOWHERE) for run in every[name][:3]] == paths
    }
    assert same == WITHOUT_LIBRARY


def test_other_agents_prices_constants_and_processors_are_other_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = next(iter(latencies.TABLE_4_2.runs(SCALE).values()))
    runs = (RIVALS, TRAINING, measured)
    before = [path_of(run, NOWHERE) for run in runs]
    assert path_of(rivals_on(SCALE, "toy_bert", device="cuda")["rivals", "toy_bert"], NOWHERE) != before[0]
    assert path_of(training_of("mf", "toy_bert", 0, SCALE, device="cuda"), NOWHERE) != before[1]
    with monkeypatch.context() as other:
        other.setattr(runner, "cpu_name", lambda: "another")
        changed = [path_of(run, NOWHERE) != path for run, path in zip(runs, before, strict=True)]
    assert changed == [False, False, True], "times of two machines make no ratio"
    monkeypatch.setenv("TORCHRLOPT_AGENT", str(tmp_path / "own.safetensors"))
    assert path_of(RIVALS, NOWHERE) != before[0]
    monkeypatch.setattr(rows, "DRAWN", 3)
    assert path_of(TRAINING, NOWHERE) != before[1]


def test_a_run_reads_what_it_needs_and_is_made_again_where_that_is_another(tmp_path: Path) -> None:
    first = doubled(number=1.5)
    second = doubled(first, number=2.0)
    before = path_of(second, tmp_path)
    make_all([second], tmp_path)
    assert read(second, tmp_path)["needed"] == [3.0]
    assert path_of(second, tmp_path) != before, "named by what came of the first"
    path = path_of(first, tmp_path)
    when = path.stat().st_mtime_ns
    make_all([second], tmp_path)
    assert path.stat().st_mtime_ns == when, "no run is made twice"
    path.write_text(json.dumps({**read(first, tmp_path), "found": 7.0}), encoding="utf-8")
    make_all([second], tmp_path)
    assert read(second, tmp_path)["needed"] == [7.0]


def test_several_are_made_at_once_and_needs_before(tmp_path: Path) -> None:
    first = doubled(number=1.0)
    runs = [doubled(first, number=float(number)) for number in range(3)]
    make_all(runs, tmp_path, jobs=2)
    assert [read(run, tmp_path)["found"] for run in runs] == [0.0, 2.0, 4.0]


@pytest.mark.nightly
def test_what_waits_is_not_begun_after_a_failure(tmp_path: Path) -> None:
    several = [failing(out=str(tmp_path), number=number) for number in range(24)]
    with pytest.raises(OSError, match="on purpose"):
        make_all(several, tmp_path, jobs=2)
    assert len(list(tmp_path.glob("begun*"))) < len(several) / 2


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = doubled(number=1.0)
    make(run, tmp_path)
    path = path_of(run, tmp_path)
    for text in ('{"found": ', "{}", "5", '{"made": {}}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(OptionsError, match=path.stem[-8:]):
            read(run, tmp_path)


def test_only_one_measures_at_a_time(tmp_path: Path) -> None:
    run = timed()
    with ThreadPoolExecutor(1) as other:
        with runner.lock(tmp_path, runner.MEASURING):
            made = other.submit(make, run, tmp_path)
            with pytest.raises(TimeoutError):
                made.result(timeout=0.5)
            assert not path_of(run, tmp_path).exists()
        made.result(timeout=120)
    assert path_of(run, tmp_path).exists()


def test_scales_are_shares_of_the_papers_steps() -> None:
    assert Scale(1.0, 3).steps(5000) == 5000
    assert Scale(0.01, 3).steps(5000) == 50
    assert dataclasses.replace(SCALE, share=0.0001).steps(5000) == 10
