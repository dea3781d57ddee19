"""Rows at equal numbers of measurements: training/experiments/efficiency/, training/episodes/answers.py."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchrlopt import _C
from torchrlopt.env import OUTCOMES, REWARDS
from torchrlopt.errors import LoweringError
from torchrlopt.executors.registry import Lowered
from torchrlopt.machine.profiling import Source
from torchrlopt.substitutions import load_library
from training.device.prices import cost_of, typical_prices
from training.dream_trainer import RANDOM_UPDATES
from training.episodes.answers import Answers, MeasuredEnv
from training.experiments.asking.learners import FAILED, LEARNERS
from training.experiments.asking.timing import ratio
from training.experiments.efficiency import on_demand, true_run
from training.experiments.efficiency.asking_run import ROWS, Asked, AskingRun, measure
from training.experiments.efficiency.experiment import (
    BUDGETS,
    PAIRS,
    TITLES,
    askings,
    budgets,
    comparisons,
    report,
    true_runs,
)  # fmt: skip
from training.experiments.efficiency.on_demand import Best, OnDemand
from training.experiments.efficiency.pool import pool
from training.experiments.efficiency.rows import FREE, ask
from training.experiments.efficiency.subjects import QUICK, SUBJECTS, source_of
from training.experiments.efficiency.true_run import Times
from training.experiments.experiment import Results
from training.experiments.runs import AllFinished, Finished, Run, Scale, Workplace, path_of
from training.graphs.fingerprint import fingerprint

COST = cost_of(typical_prices("eager"))


class Told(Answers):
    """Answers from a rule in place of a machine: 1 for the first graph, then less and less."""

    def __init__(self) -> None:
        super().__init__({}, load_library().names, is_at_end=True)

    def time(self, graph: _C.Graph) -> float:
        self.asked.setdefault(fingerprint(graph))
        return 1 / (1 + list(self.asked).index(fingerprint(graph)))


def test_a_machine_that_changes_its_speed_is_asked_again() -> None:
    speeds = iter([1, 1, 2.2, 2.2, 1, 1, 1])  # of the first, the graph, the first, ...
    assert ratio(lambda: 0.8 / next(speeds), lambda: 1 / next(speeds)) == pytest.approx(0.8)
    assert list(speeds) == []


def test_of_times_that_never_agree_those_count_that_differ_least() -> None:
    firsts = iter([1.0, 1.5, 1.2, 1.8, 1.7, 2.6, 4.0])
    found = ratio(lambda: 1.0, lambda: next(firsts))
    assert found == pytest.approx(2 / (1.8 + 1.7))


def test_only_what_an_episode_ends_with_is_asked_for_and_rewards_add_up_to_it() -> None:
    graph, answers = source_of(QUICK).program.graph, Told()
    env = MeasuredEnv(graph, load_library(), COST, answers, num_envs=1, max_steps=4, has_macros=False)
    env.reset([0], [{}])
    assert len(answers.asked) == 1
    first = before = env.outcomes()
    saved = 0.0
    promises = []
    for _ in range(4):
        assert len(answers.asked) == 1, "on the way nothing is measured"
        after = env.step([0])
        saved += float(REWARDS["R5"](before, after, first)[0])
        promises.append(float(after[0, OUTCOMES["cost_after_us"]]))
        before = after
    assert after[0, OUTCOMES["truncated"]] > 0
    assert len(answers.asked) == 2
    assert promises[-1] == 0.5, "the last one is measured"
    graphs = [_C.VecRewriteEnv([graph], load_library(), COST, num_envs=1, max_steps=9, has_macros=False)]
    graphs[0].reset([0], [{}])
    for promised in promises[:-1]:
        priced = graphs[0].step([0])
        assert promised == pytest.approx(
            priced[0, OUTCOMES["cost_after_us"]] / priced[0, OUTCOMES["initial_us"]]
        )
    assert saved == pytest.approx(0.5)


def test_what_was_measured_is_known_and_the_best_is_kept() -> None:
    source = source_of(QUICK)
    machine = OnDemand(source, "eager")
    first = machine.time(source.program.graph)
    assert 0 < first != FAILED
    assert machine.time(source.program.graph) == first
    assert len(machine.asked) == 1
    asking = FREE["best_first"](source.program.graph, load_library(), COST, np.random.default_rng(0))
    ask(asking, machine, 8)
    assert len(machine.asked) == 8
    assert [best.told for best in machine.bests] == sorted(
        (best.told for best in machine.bests), reverse=True
    )
    assert machine.best_after(1).told == first
    assert machine.best_after(8) == dataclasses.replace(machine.bests[-1], measurements=8)
    assert machine.seconds > 0
    rebuilt = _C.parse_graph(machine.bests[-1].text)
    assert machine.time(rebuilt) == machine.bests[-1].told, "a graph read from its text is the same graph"


def test_what_seems_fastest_is_timed_again_and_luck_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = OnDemand(source_of(QUICK), "eager")
    first = machine.time(machine.source.program.graph)
    shares = iter([0.1 * first, 0.9 * first, 1.1 * first])  # a lucky block, then two that are not
    monkeypatch.setattr(on_demand, "ratios", lambda *given: [next(shares) for _ in range(given[-1])])
    after = _C.search(
        machine.source.program.graph, load_library(), COST, searcher="greedy", budget_ms=1e9, budget_steps=9
    )["graph"]
    assert machine.time(after) == pytest.approx(0.9 * first)
    assert machine.best_after(2).told == pytest.approx(0.9 * first)
    assert len(machine.asked) == 2


class Refusing(Source):
    """A model of which an executor runs the first graph only."""

    def lower(self, graph: _C.Graph, executor: str) -> Lowered:
        if graph.hash() != self.program.graph.hash():
            raise LoweringError("the executor does not run this graph")
        return super().lower(graph, executor)


def test_a_graph_that_the_executor_refuses_is_told_as_slow() -> None:
    machine = OnDemand(Refusing(source_of(QUICK).job), "eager")
    graph = machine.source.program.graph
    asking = FREE["best_first"](graph, load_library(), COST, np.random.default_rng(0))
    ask(asking, machine, 4)
    assert machine.best_after(4).text == graph.text()
    after = _C.search(graph, load_library(), COST, searcher="greedy", budget_ms=1e9, budget_steps=9)["graph"]
    assert machine.time(after) == FAILED


def test_a_pool_is_of_distinct_graphs_around_the_cheapest() -> None:
    graph = source_of("darts_asymmetric_separable").program.graph
    space = pool(graph, load_library(), COST, 60)
    keys = list(map(fingerprint, space.graphs))
    assert len(set(keys)) == len(keys) == 60
    assert keys[0] == fingerprint(graph)
    costs = [float(COST.metrics(each)["time_us"]) for each in space.graphs]
    found = _C.search(graph, load_library(), COST, searcher="greedy", budget_ms=1e9, budget_steps=1_000)
    assert min(costs) <= float(COST.metrics(found["graph"])["time_us"]) < costs[0]
    few = pool(graph, load_library(), COST, 3)
    assert min(float(COST.metrics(each)["time_us"]) for each in few.graphs) == min(costs), "ends come first"
    for each, steps in zip(space.graphs, space.steps, strict=True):
        assert fingerprint(_C.replay(graph, load_library(), steps)) == fingerprint(each)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_measures_within_its_budget_and_its_choice_can_be_timed_again(row: str) -> None:
    run = AskingRun(row, QUICK, "eager", 0, (3, 30) if row in LEARNERS else (3, 6))
    if row in LEARNERS:
        assert run.config.updates > RANDOM_UPDATES, "a world model learns"
    asked = measure(run)
    assert [chosen.measurements for chosen in asked.chosen] == list(run.budgets)
    assert asked.chosen[1].told <= asked.chosen[0].told
    least = 2 if row in LEARNERS else 6  # all episodes may end with one graph in so small a space
    most = run.budgets[-1] + 16  # an update's episodes are played to their ends
    assert least <= asked.measured <= most
    assert 0 < asked.measuring_seconds < asked.seconds
    times = true_run.measure(QUICK, "eager", 2, [chosen.text for chosen in asked.chosen])
    for chosen in asked.chosen:
        assert 0 < times.of(chosen.text) != FAILED


@pytest.mark.parametrize("row", ["random_play", "random_macros"])
def test_seeds_play_differently_and_one_seed_alike(row: str) -> None:
    graph = source_of("darts_asymmetric_separable").program.graph

    def first_graphs(seed: int) -> list[str]:
        asking = FREE[row](graph, load_library(), COST, np.random.default_rng(seed))
        return [fingerprint(next(asking)), *(fingerprint(asking.send(1.0)) for _ in range(3))]

    assert first_graphs(0) == first_graphs(0)
    assert first_graphs(0) != first_graphs(1)


def test_the_question_is_asked_on_five_graphs_with_the_budgets_of_the_share(tmp_path: Path) -> None:
    assert budgets(Scale(1.0, 5)) == BUDGETS
    assert budgets(Scale(0.1, 1))[-1] == 300
    assert budgets(Scale(0.001, 1)) == (10,)
    keys = askings(Scale(1.0, 5))
    assert len(SUBJECTS) - 1 == 5
    assert {subject for _, subject, _, _ in keys} == set(SUBJECTS) - {QUICK}
    assert {executor for _, _, executor, _ in keys} == {"eager", "onnxruntime"}
    assert {executor for _, _, executor, _ in askings(Scale(0.001, 1))} == {"eager"}
    runs = true_runs(Scale(0.1, 2), Workplace(tmp_path))
    assert all(len(run.needs) == 2 * len(ROWS) for run in runs.values())


def test_what_is_slower_is_told_by_calls_that_did_not_choose_the_fastest() -> None:
    lucky, steady = (
        "graph (x: f32[2]) {\n  y = Relu(x)\n  return y\n}",
        "graph (x: f32[2]) {\n  y = Exp(x)\n  return y\n}",
    )
    keys = [fingerprint(_C.parse_graph(text)) for text in (lucky, steady)]
    blocks = {keys[0]: [0.5, 0.9, 0.5, 0.9], keys[1]: [0.8] * 4, "failed": [FAILED]}
    times = Times(blocks, 1.0)
    assert times.of(lucky) == 0.9
    assert times.fastest == 0.9, "the one that the first half chose, by the second half"
    assert times.of(steady) / times.fastest < 1
    assert times.noise == pytest.approx((0.4 / 0.9) / 2)


def test_rows_are_ahead_by_what_all_graphs_say_together() -> None:
    scale = Scale(0.1, 1)
    rng = np.random.default_rng(0)
    clear = {}
    for row in ROWS:
        for i in range(5):
            noise = 0.001 * rng.standard_normal(4)
            clear[row, f"graph{i}", "eager", 0] = (0.1 if row == "mf" else 0.3) + noise
    lines = comparisons(clear, scale)
    assert len(lines) == 1 + len(PAIRS)
    chances = {line.split(" less ")[0]: float(line.split("p = ")[1].rstrip(".")) for line in lines[1:]}
    assert chances["  - eager, MF"] < 0.001
    assert chances["  - eager, model of prices"] > 0.05


def test_the_report_tells_of_every_row_graph_and_executor(tmp_path: Path) -> None:
    scale, place = Scale(0.3, 1), Workplace(tmp_path)
    texts = {row: f"graph (x: f32[{i + 2}]) {{\n  y = Relu(x)\n  return y\n}}" for i, row in enumerate(ROWS)}
    shares = {row: 0.5 + 0.05 * i for i, row in enumerate(ROWS)}
    found: dict[Run[Any], Finished[Any]] = {}
    for (row, *_), run in askings(scale).items():
        chosen = [Best(budget, shares[row] - 0.01, texts[row]) for budget in run.budgets]
        found[run] = Finished(Asked(chosen, 300, 7, 2.0, 1.0), 1.0, "a machine", 2.0)
    for run in true_runs(scale, place).values():
        blocks = {fingerprint(_C.parse_graph(texts[row])): [shares[row]] * 4 for row in ROWS}
        blocks |= {"refused": [FAILED]} if run.executor == "onnxruntime" else {}
        found[run] = Finished(Times(blocks, 5.0), 1.0, "a machine", 2.0)
    text = "\n".join(report(Results(AllFinished(found), scale, place), tmp_path))
    for i, row in enumerate(ROWS):
        slower = 10.0 * i
        assert text.count(f"| {TITLES[row]} | {slower:.1f} % ({slower:.1f} to {slower:.1f}) |") == 2
    assert "did not run 5 of the graphs" in text
    assert text.count("p = ") == 2 * len(PAIRS)
    for _, name, executor, _ in askings(scale):
        assert text.count(f"| {name} | {executor} | {len(ROWS) + (executor != 'eager')} |") == 1
    lines = (tmp_path / "efficiency.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(askings(scale)) * len(budgets(scale))
    assert (tmp_path / "efficiency.png").read_bytes().startswith(b"\x89PNG")


def test_every_row_has_a_title_and_what_is_compared_is_a_row() -> None:
    assert set(TITLES) == set(ROWS)
    assert {row for pair in PAIRS for row in pair} <= set(ROWS)


def test_what_depends_on_outcomes_is_kept_by_them(tmp_path: Path) -> None:
    run = next(iter(true_runs(Scale(0.001, 1), Workplace(tmp_path)).values()))
    before = path_of(run, tmp_path)
    (tmp_path / "runs").mkdir()
    chosen = {"measurements": 10, "told": 0.5, "text": "one"}
    names = set()
    for text in ("one", "another"):
        for asking in run.askings:
            outcome = {"chosen": [{**chosen, "text": text}]}
            path_of(asking, tmp_path).write_text(json.dumps({"outcome": outcome}), encoding="utf-8")
        names.add(path_of(run, tmp_path))
    assert len(names | {before}) == 3
