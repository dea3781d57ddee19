"""Types of calls as an environment in which each step is measured: training/dear_precision.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import typer
from gymnasium.utils.env_checker import check_env
from torch import nn
from typer.testing import CliRunner

pytest.importorskip("torch_geometric", reason="training needs the extra train")

from baselines.shared.tables import of, read
from torchrlopt.errors import EnvError
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.judge.budget import rms
from torchrlopt.machine.profiling import Source, trace
from training import dear_precision
from training.precision.answers import AnswerFile, MeasuredGraph
from training.precision.env import BUDGET, PrecisionEnv
from training.precision.questions import Questions, drawn, neighbours
from training.precision.surrogates import Answered, GaussianProcess, WorldModel, logs_of


@pytest.fixture(scope="module")
def source() -> Source:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU()) for _ in range(3)]
        (found,) = trace(nn.Sequential(*layers).eval(), (torch.randn(16, 128),))
    return found


@pytest.fixture(scope="module")
def graph(source: Source) -> MeasuredGraph:
    return MeasuredGraph("three layers", source, AnswerFile())


def test_times_are_those_of_the_package_for_any_assignment(graph: MeasuredGraph) -> None:
    rungs = drawn(graph, np.random.default_rng(0), 20)
    assert len({tuple(each) for each in rungs.tolist()}) > 10
    choices = [graph.choice(each) for each in rungs.tolist()]
    np.testing.assert_allclose(graph.us(rungs), [each.us for each in choices], rtol=1e-9)
    assert [graph.rungs(each) for each in choices] == list(map(tuple, rungs.tolist()))


def test_what_is_lowered_has_a_larger_error(graph: MeasuredGraph) -> None:
    none, all_low = np.zeros(len(graph.calls), int), np.ones(len(graph.calls), int)
    assert graph.error(none.tolist()) < 1e-5 < 1e-4 < graph.error(all_low.tolist()) < 1e-1


def built_error(graph: MeasuredGraph, rungs: Sequence[int]) -> float:
    """The error of the graph that the package builds, in which activations are fused."""
    choice = graph.choice(rungs)
    built = graph._mixed.built(choice.lowered, choice.quantised)
    return rms(built(*graph._source.inputs), graph._reference)


def test_errors_are_close_to_those_of_the_built_graph(graph: MeasuredGraph) -> None:
    for rungs in (drawn(graph, np.random.default_rng(0), 5) % 2).tolist():
        error = graph.error(rungs)
        assert 0.6 * error < built_error(graph, rungs) < 1.3 * error, (
            "what is fused is not rounded in between"
        )


@pytest.mark.skipif(not indirect.has_int8(torch.float32), reason="no kernels for 8-bit integers here")
def test_a_mixed_run_rounds_as_the_kernels_for_integers_do(graph: MeasuredGraph) -> None:
    rungs = np.where(graph.legal[:, 2], 2, 0).tolist()
    assert any(rungs)
    assert graph.error(rungs) == pytest.approx(built_error(graph, rungs), rel=0.02)


def test_an_answer_is_measured_once_and_replayed(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "answers.csv.gz"
    file = AnswerFile(path)
    first = MeasuredGraph("a", source, file)
    asked = drawn(first, np.random.default_rng(0), 3).tolist()
    errors = [first.error(each) for each in asked]
    file.flush()
    again = MeasuredGraph("a", source, AnswerFile(path, is_replay=True))
    assert [again.error(each) for each in asked] == errors
    np.testing.assert_array_equal(again.us(np.asarray(asked)), first.us(np.asarray(asked)))
    other = next(each for each in neighbours(first, asked[0]).tolist() if each not in asked)
    with pytest.raises(EnvError, match="not in the file"):
        again.error(other)
    with pytest.raises(EnvError, match="not in the file"):
        MeasuredGraph("a graph that the file lacks", source, AnswerFile(path, is_replay=True))


def test_rewards_add_up_to_the_time_that_the_best_assignment_saves(graph: MeasuredGraph) -> None:
    env = PrecisionEnv(graph, budget=1.0)
    check_env(env, skip_render_check=True)
    env.reset(seed=0)
    total, shares = 0.0, [1.0]
    random, is_over = np.random.default_rng(0), False
    while not is_over:
        _, reward, _, is_over, _ = env.step(np.int64(random.integers(env.action_space.n)))
        total += reward
        shares.append(float(graph.us(env.rungs[None])[0]) / graph.float32_us)
    assert total == pytest.approx(1.0 - min(shares))
    many = gymnasium.vector.SyncVectorEnv([lambda: PrecisionEnv(graph)] * 3)
    many.reset(seed=0)
    assert many.step(np.array([1, 5, 9]))[1].shape == (3,)


def test_a_step_changes_only_what_its_information_says(graph: MeasuredGraph) -> None:
    env = PrecisionEnv(graph)
    _, info = env.reset()
    for action, changes in enumerate(info["changes"].tolist()):
        env.reset()
        env.step(np.int64(action))
        assert env.rungs.any() == changes


class Exact:
    """A graph whose errors add in squares exactly; stands for one that is measured, with known parts."""

    def __init__(self, graph: MeasuredGraph, seed: int) -> None:
        parts = np.random.default_rng(seed).normal(-12, 2, (len(graph.calls), 3))
        self.parts = np.concatenate([np.zeros((len(parts), 1)), np.exp(parts)], 1)

    def logs(self, rungs: np.ndarray) -> np.ndarray:
        return logs_of(np.sqrt([self.parts[np.arange(len(each)), each].sum() for each in rungs]))


def test_surrogates_learn_what_errors_add_up_of(graph: MeasuredGraph) -> None:
    random, true = np.random.default_rng(0), Exact(graph, 1)
    known, new = drawn(graph, random, 60), drawn(graph, random, 60)
    other: Answered = (graph, known, Exact(graph, 2).logs(known))
    for surrogate in (GaussianProcess(graph, 0), WorldModel([other], 0, False).on(graph, 0)):
        for _ in range(10):
            surrogate.fit(known, true.logs(known))
        mean, deviation = surrogate.predict(new)
        assert np.corrcoef(mean, true.logs(new))[0, 1] > 0.8
        assert (deviation > 0).all()


def test_every_row_asks_no_more_than_it_may_and_keeps_the_budget(graph: MeasuredGraph) -> None:
    most = 8
    answered = [dear_precision._answered(graph, most)]
    assert len(answered[0][1]) <= most
    rows = dear_precision._rows([graph], answered, most, 0)
    assert len(rows) == 12
    for name, row in rows.items():
        ask = Questions(graph, most, BUDGET)
        dear_precision._asked(row, ask, np.random.default_rng(0))
        assert (name not in ("sensitivities", "by arithmetic")) <= len(ask.known) <= most, name
        assert ask.curve == sorted(ask.curve, reverse=True)
        assert ask.known.get(ask.best, 0.0) <= BUDGET
        assert ask.after(most) == ask.share(ask.best)


def test_the_command_replays_what_it_has_measured(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Given:
        def source(self) -> Source:
            return source

    given: Mapping[str, Given] = {"a": Given()}
    monkeypatch.setattr(dear_precision, "LEARNT", given)
    monkeypatch.setattr(dear_precision, "HELD_OUT", {"b": Given()})
    app = typer.Typer()
    app.command()(dear_precision.main)
    arguments = ["--answers", str(tmp_path / "answers.csv.gz"), "--quick", "--seeds", "2", "--most", "10"]
    found = []
    for name, more in (("first.csv", []), ("again.csv", ["--replay"])):
        result = CliRunner().invoke(app, [*arguments, "--csv", str(tmp_path / name), *more])
        assert result.exit_code == 0, result.output
        found.append(of(read(tmp_path / name), metric="time"))
    assert found[0].value.equals(found[1].value)
    assert found[0].value.between(0.0, 1.0).all()
    assert set(found[0][found[0]["round"] == 1].peer) < set(found[0].peer)
