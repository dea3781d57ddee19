"""The dissertation's figures of what is trained, at their smallest: training/experiments/dissertation/."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from torchrlopt import _C
from torchrlopt.errors import RlOptError
from torchrlopt.machine.cost import device_model
from torchrlopt.substitutions import load_library
from training.device.prices import cost_of, prices_of
from training.dream_trainer import DreamTrainer
from training.experiments.dissertation import trainings
from training.experiments.dissertation.evaluation import (
    DRAWN,
    UniformCandidates,
    best_prefix,
    costs_along,
    env_step_ms,
    gain_of,
    played,
)
from training.experiments.dissertation.latency_run import AGAIN, ORIGINAL
from training.experiments.dissertation.of_rows import EXPERIMENTS_OF_ROWS
from training.experiments.dissertation.rivals import RivalsRun, random_of
from training.experiments.dissertation.row_run import ROW_TITLES, RowRun, evaluated
from training.experiments.dissertation.subjects import BERT, TINY, bert, graph_of, subjects
from training.experiments.reproduction import reproduce
from training.experiments.runs import EXECUTORS, Run, Scale, Workplace, finished, make, path_of, with_needs
from training.trainer import STATE

SCALE = Scale(0.001, 1)
pytestmark = pytest.mark.slow
Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A folder in which everything was reproduced."""
    found = Workplace(tmp_path_factory.mktemp("reproduce"))
    reproduce(list(EXPERIMENTS_OF_ROWS), SCALE, found)
    return found


@pytest.fixture
def table(place: Workplace) -> Callable[[str], Rows]:
    return lambda name: list(csv.DictReader((place.out / f"{name}.csv").open(encoding="utf-8")))


def column(rows: Rows, name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


def test_every_figure_is_made_and_none_of_its_runs_twice(place: Workplace) -> None:
    report = (place.out / "REPORT.md").read_text(encoding="utf-8")
    for name in EXPERIMENTS_OF_ROWS:
        assert f"## {name}: " in report
        assert f"({name}.png)" in report
        assert (place.out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (place.out / f"{name}.png").stat().st_size < 100_000
    made = {path: path.stat().st_mtime_ns for path in (place.out / "runs").glob("*.json")}
    again = reproduce(["fig4.3", "table4.3"], SCALE, place).read_text(encoding="utf-8")
    assert again == report, "the report of the same runs is the same, and the other sections stay"
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_figures_share_their_trainings() -> None:
    nowhere = Workplace(Path("nowhere"))
    every = [run for each in EXPERIMENTS_OF_ROWS.values() for run in each.runs(SCALE, nowhere)]
    names = [run.name for run in with_needs(every)]
    assert len(names) == len(set(names))
    for row in ("mf", "wm"):
        mine = [name for name in names if name.startswith(f"{row}-{TINY}-best_so_far")]
        assert sorted("-cuda-" in name for name in mine) == [False, True], "by both devices' prices, once"
    assert subjects(Scale(0.05, 1)) == (BERT,)
    assert len(subjects(Scale(1.0, 1))) == 6
    assert subjects(Scale(1.0, 1, ("vit_s16",))) == ("vit_s16",)
    assert bert(Scale(1.0, 1, ("vit_s16",))) == "vit_s16"
    assert bert(Scale(1.0, 1, ("vit_s16", BERT))) == BERT


def test_graphs_that_are_not_there_are_refused() -> None:
    told = subprocess.run(
        [sys.executable, "training/reproduce.py", "fig4.3", "--graphs", "toy_bert,resnet5"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "300"},
        cwd=Path(__file__).resolve().parents[2],
    )
    assert told.returncode == 2
    assert "there is no graph resnet5" in told.stderr


def test_latencies_are_measured_beside_the_original_and_predicted_by_replay(
    place: Workplace, table: Callable[[str], Rows]
) -> None:
    run = trainings.latencies(SCALE, place)[TINY]
    measured = finished([run], place.out).outcome(run)
    cost = cost_of(prices_of(device_model("eager", "cpu")))
    for name, row in (("fig4.3", "mf"), ("fig4.7", "wm")):
        rows = table(name)
        assert {each["executor"] for each in rows} == set(EXECUTORS)
        assert {each["plan"] for each in rows} == {"greedy", "taso", "random", "agent", row, AGAIN}
        assert (column(rows, "ratio") > 0.1).all()
        for plan, steps in run.plans().items():
            if plan in map(random_of, ROW_TITLES) and plan != random_of(row):
                continue  # of the other row's steps
            for each in [each for each in rows if each["plan"] == plan.split()[0]]:
                assert float(each["predicted_gain"]) == pytest.approx(
                    gain_of(graph_of(TINY), cost, steps), abs=1e-5
                )
    original = measured.milliseconds["eager"][ORIGINAL]
    assert measured.ratios("eager", AGAIN) == [
        a / b for a, b in zip(original, measured.milliseconds["eager"][AGAIN], strict=True)
    ]
    for plan, first in measured.same.items():
        assert measured.ratios("eager", plan) == measured.ratios("eager", first)


def test_foretold_and_real_are_of_the_same_episodes(place: Workplace, table: Callable[[str], Rows]) -> None:
    run = trainings.on_bert("wm", SCALE, place)[0]
    kept = finished([run], place.out).outcome(run)
    assert len(kept.foretold) == len(kept.real) == len(kept.played.gains) == DRAWN
    # The reward is the fall of the lowest cost, so that sums of rewards are what the environment says.
    np.testing.assert_allclose(kept.real, kept.played.gains, atol=1e-5)
    rows = table("table4.3")
    assert len(rows) == DRAWN * len(trainings.TEMPERATURES)
    found = trainings.temperatures(SCALE, place)
    for (temperature, seed), each in found.items():
        outcome = finished([each], place.out).outcome(each)
        mine = [row for row in rows if float(row["temperature"]) == temperature and row["seed"] == str(seed)]
        np.testing.assert_allclose(column(mine, "real"), outcome.real, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(column(mine, "foretold"), outcome.foretold, rtol=1e-4, atol=1e-6)


def test_curves_are_what_was_logged(place: Workplace, table: Callable[[str], Rows]) -> None:
    mf, wm = (trainings.on_bert(row, SCALE, place)[0] for row in ("mf", "wm"))
    logs = {run.row: finished([run], place.out).outcome(run).log for run in (mf, wm)}
    np.testing.assert_allclose(column(table("fig4.4"), "mean_reward"), logs["mf"]["mean_return"], rtol=1e-4)
    both = table("fig4.10")
    for row, log in logs.items():
        mine = [each for each in both if each["row"] == row]
        for axis in ("real_steps", "cpu_seconds", "mean_return"):
            np.testing.assert_allclose(column(mine, axis), log[axis], rtol=1e-4)
        assert (np.diff(column(mine, "real_steps")) > 0).all()
    assert {each["imagined_steps"] for each in both if each["row"] == "mf"} == {"nan"}
    promises = table("fig4.9")
    np.testing.assert_allclose(column(promises, "mean_return"), column(promises, "real_gain"), atol=1e-4)
    losses = table("fig4.8")
    for name in ("fresh_mixture", "fresh_gaussian", "unchanged_f1"):
        np.testing.assert_allclose(column(losses, name), logs["wm"][name], rtol=1e-4)


def test_each_reward_is_a_training_of_its_own(table: Callable[[str], Rows]) -> None:
    rows = table("fig4.6")
    assert {row["reward"] for row in rows} == {
        *trainings.REWARDS,
        *(f"alpha{alpha}" for alpha in trainings.ALPHAS if alpha not in trainings.NAMED),
    }
    assert ((column(rows, "normalised") >= 0) & (column(rows, "normalised") <= 1)).all()
    ends = {row["reward"]: row["mean_reward"] for row in rows}
    assert len(set(ends.values())) > 3, "other rewards, other numbers"


def test_substitutions_are_counted_and_steps_timed(place: Workplace, table: Callable[[str], Rows]) -> None:
    rivals = trainings.rivals(SCALE)[TINY]
    steps = finished([rivals], place.out).outcome(rivals).plans["greedy"]
    mine = [row for row in table("fig4.11") if row["plan"] == "greedy"]
    assert column(mine, "times").sum() == len(steps)
    times = {row["step"]: float(row["milliseconds"]) for row in table("step_times")}
    assert 0 < times["environment_mf"] < times["real_mf"]
    assert 0 < times["environment_wm"] < times["real_wm"]
    assert 0 < times["imagined"] < times["real_wm"]
    saved = {(row["device"], row["plan"]): float(row["predicted_time"]) for row in table("toy_bert")}
    assert 0 < saved["cpu", "greedy"] < 100


def test_the_toy_bert_is_searched_by_the_prices_of_a_gpu_too(
    place: Workplace, table: Callable[[str], Rows]
) -> None:
    rows = {(row["device"], row["plan"]): row for row in table("toy_bert")}
    assert {device for device, _ in rows} == {"cpu", "cuda"}
    assert all(row["eager"] == "" for (device, _), row in rows.items() if device == "cuda"), (
        "nothing ran on one"
    )
    run = trainings.rivals_on_gpu(SCALE)
    cost = cost_of(prices_of(device_model("eager", "cuda")))
    plans = finished([run], place.out).outcome(run).plans
    for plan, title in (("greedy", "greedy"), ("taso", "TASO's search"), ("agent", "our agent")):
        gain = 100 * gain_of(graph_of(TINY), cost, plans[plan])
        assert float(rows["cuda", title]["predicted_time"]) == pytest.approx(gain, rel=1e-4)
        assert gain > 0


def test_a_training_that_was_killed_goes_on(tmp_path: Path) -> None:
    def run_in(folder: Path) -> RowRun:
        (folder / "runs").mkdir(parents=True)
        return RowRun("mf", TINY, 3, 3, folder)

    straight, broken = run_in(tmp_path / "straight"), run_in(tmp_path / "broken")
    make(straight, straight.out)

    class KilledError(Exception):
        pass

    told = 0

    def kill() -> None:
        nonlocal told
        told += 1
        if told == 2:
            raise KilledError

    trainer = broken.trainer()
    next(iter(trainer.updates()))
    trainer.save()
    with pytest.raises(KilledError):
        make(broken, broken.out, kill)
    assert not path_of(broken, broken.out).exists()
    assert (broken.folder / STATE).exists()
    make(broken, broken.out)
    a, b = (finished([run], run.out).outcome(run) for run in (straight, broken))
    assert a.played.steps == b.played.steps
    assert a.log["mean_return"] == b.log["mean_return"]
    assert a.real_steps == b.real_steps


def test_a_policy_is_judged_by_the_best_graph_that_it_passed() -> None:
    cost, library, graph = _C.CostModel(), load_library(), graph_of(TINY)
    steps = _C.search(graph, library, cost, searcher="greedy")["steps"]
    along = costs_along(graph, cost, steps)
    assert len(along) == len(steps) + 1
    lowest = min(range(len(along)), key=along.__getitem__)
    assert best_prefix(graph, cost, [[], steps]) == steps[:lowest]
    assert best_prefix(graph, cost, [[]]) == []
    assert gain_of(graph, cost, []) == 0
    with pytest.raises(IndexError):
        costs_along(graph, cost, [(steps[0][0], 10**6)])
    config = RowRun("mf", TINY, 0, 1, Path()).config
    told, rollout = played(graph, cost, [UniformCandidates(True)] * 2, config)
    same = played(graph, cost, [UniformCandidates(True)] * 2, config)[0]
    assert (told.steps, told.gains) == (same.steps, same.gains), "drawn by key"
    assert told.best >= max([*told.gains, told.likeliest]) - 1e-9
    assert sum(told.lengths) == rollout.num_steps


def test_every_episode_of_random_play_is_drawn() -> None:
    """Without noise the one that plays at random would always take the first candidate."""
    cost, graph = _C.CostModel(), graph_of(TINY)
    more = [
        played(graph, cost, [UniformCandidates(False)] * 2, RowRun("mf", TINY, seed, 1, Path()).config)[0]
        for seed in range(4)
    ]
    assert len({each.likeliest for each in more}) > 1
    assert all(each.likeliest not in each.gains or len(set(each.gains)) < DRAWN for each in more)


def test_an_agent_that_cannot_be_loaded_is_no_rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHRLOPT_AGENT", str(tmp_path / "none.safetensors"))
    with pytest.raises(RlOptError):
        RivalsRun(TINY, 0, 100).make(lambda: None)


def test_a_plan_without_steps_takes_no_time() -> None:
    assert math.isnan(env_step_ms(graph_of(TINY), _C.CostModel(), []))


def test_a_world_model_that_is_scored_is_the_one_that_was_trained(place: Workplace) -> None:
    run = trainings.on_bert("wm", SCALE, place)[0]
    trainer = run.trainer()
    assert isinstance(trainer, DreamTrainer)
    again = evaluated(trainer, TINY)
    kept = finished([run], place.out).outcome(run)
    torch.testing.assert_close(again.foretold, kept.foretold)
    assert again.played.steps == kept.played.steps


def test_what_is_needed_is_made_first() -> None:
    nowhere = Workplace(Path("nowhere"))
    runs: list[Run[object]] = [*trainings.latencies(SCALE, nowhere).values()]
    ordered = with_needs(runs)
    for run in ordered:
        assert all(ordered.index(need) < ordered.index(run) for need in run.needs)
    assert len(ordered) > len(runs), "trainings and rivals are among them"
