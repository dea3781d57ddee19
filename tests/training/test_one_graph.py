"""Runs on one graph: training/graphs/one_graph.py, and a world model's log there."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.agent.agent_cases import GRAPHS, LIBRARY
from tests.crosses import nightly_but
from torchrlopt.agent.networks.actions import LatentState
from torchrlopt.errors import OptionsError
from training import checkpoints
from training.collectors.collector import Collector
from training.collectors.worker import state_of
from training.config import ROWS, Config
from training.dream_trainer import DreamTrainer
from training.episodes.candidate_task import CandidatePlayer
from training.episodes.latent_task import RANDOM
from training.episodes.play import Key
from training.graphs.curriculum import structure_hash
from training.graphs.one_graph import one_graph
from training.real_trainer import RealTrainer
from training.rollout import Rollout
from training.trainer import STATE
from training.world.model_scores import episode_gains, first_returns, gaussian_loss, model_scores
from training.world.sequences import Sequences

SIZES = {"max_steps": 4, "rollouts": 3, "updates": 2}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two products of one input by weights, and their sum."""
    shapes = {"x": [8, 64], "y": [8, 64]}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shapes["x"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes["y"])]
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, [64, 64], torch.randn(64 * 64).tolist()) for name in "ab"
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("MatMul", ["x", "b"], ["q"]),
        helper.make_node("Add", ["p", "q"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "sum", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("onnx") / "sum.onnx"
    onnx.save(model, path)
    return str(path)


def test_a_graph_is_a_model_of_the_suite_or_a_file(file: str) -> None:
    ops = [one_graph(file).node(node)["op"] for node in one_graph(file).topological_order()]
    assert ops.count("MatMul") == 2
    assert len(one_graph("ensemble_mlp").topological_order()) > 10
    with pytest.raises(OptionsError, match=r"there is no such graph.*toy_bert.*no_such_model"):
        one_graph("no_such_model")


def test_a_run_on_one_graph_begins_every_episode_there_with_the_whole_library(file: str) -> None:
    config = Config.of_row("mf", graph=file, **SIZES)
    assert (config.original_share, config.primitives_share, config.warm_up) == (1.0, 0.0, 0)
    assert Config.of_row("mf", graph=file, original_share=0.5).original_share == 0.5
    assert Config.of_row("mf").original_share == Config().original_share


@pytest.mark.parametrize("row", nightly_but(["gumbel"], ROWS))
def test_every_row_trains_on_one_graph(row: str, file: str, tmp_path: Path) -> None:
    small = {"dream_batch": 8, "dream_horizon": 3, "dream_updates": 1, "model_epochs": 1}
    config = Config.of_row(row, graph=file, teacher_expansions=20, **small, **SIZES | {"updates": 3})
    trainer = (DreamTrainer if row in DreamTrainer.rows else RealTrainer)(config, tmp_path)
    logs = list(trainer.updates())
    assert logs[-1]["mean_return"] > 0, "one product costs less than two"
    assert 0 < logs[0]["cpu_seconds"] < logs[-1]["cpu_seconds"] or len(logs) == 1
    _, metadata = checkpoints.load(trainer.export(), LIBRARY)
    seen = json.loads(metadata["manifest"])
    assert seen == {"graph": file, "structure": structure_hash(one_graph(file))}
    again = type(trainer)(dataclasses.replace(config, updates=4), tmp_path, resume=True)
    assert (again.update, again.cpu_seconds) == (3, trainer.cpu_seconds)
    assert len(list(again.updates())) == 1
    with pytest.raises(OptionsError, match="another graph"):
        type(trainer)(dataclasses.replace(config, graph="ensemble_mlp"), tmp_path, resume=True)


def test_a_run_without_updates_is_saved_all_the_same(file: str, tmp_path: Path) -> None:
    trainer = RealTrainer(Config.of_row("mf", graph=file, updates=0), tmp_path)
    assert list(trainer.updates()) == []
    assert (tmp_path / STATE).exists()


def test_all_episodes_are_of_the_graph(tmp_path: Path) -> None:
    config = Config.of_row("mf", original_share=1.0, **SIZES)
    trainer = RealTrainer(config, tmp_path, graph=GRAPHS[1])
    with Collector(functools.partial(CandidatePlayer, trainer.config, graph=GRAPHS[1].text())) as collector:
        first, second = collector.collect(
            state_of(trainer.controller), [Key(0, 0, group) for group in range(2)]
        )
    nodes = len(first.states[0].episode(0).ops)
    assert all(len(first.states[0].episode(row).ops) == nodes for row in range(3))
    assert len(second.states[0].episode(0).ops) == nodes


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[DreamTrainer, Sequences]:
    """A world model that has seen little, and random episodes."""
    config = Config.of_row("wm", max_steps=5, rollouts=4, groups=1, original_share=1.0)
    trainer = DreamTrainer(config, tmp_path_factory.mktemp("wm"), graph=GRAPHS[1])
    trainer.begin()
    seen = trainer.collect(7, RANDOM)[0].seen
    assert seen is not None
    return trainer, seen


def test_foretold_and_real_gains_are_of_the_same_episodes(watched: tuple[DreamTrainer, Sequences]) -> None:
    trainer, seen = watched
    foretold, real = episode_gains(trainer.model, seen, torch.Generator().manual_seed(0))
    assert torch.equal(real, (seen.rewards * seen.valid).sum(1))
    order = torch.tensor([2, 0, 3, 1])
    shuffled, same = episode_gains(trainer.model, seen.select(order), torch.Generator().manual_seed(0))
    assert torch.equal(same, real[order])
    torch.testing.assert_close(shuffled, foretold[order])
    longer = episode_gains(trainer.model, seen.padded(3), torch.Generator().manual_seed(0))
    torch.testing.assert_close(longer[0], foretold, msg="padding foretells nothing")
    scores = model_scores(trainer.model, seen, torch.Generator().manual_seed(0))
    assert scores["predicted_gain"] == pytest.approx(float(foretold.mean()), rel=1e-6)
    assert scores["real_gain"] == pytest.approx(float(real.mean()), rel=1e-6)


def test_trivial_predictors_stand_beside_the_model(watched: tuple[DreamTrainer, Sequences]) -> None:
    trainer, seen = watched
    scores = trainer.scores(seen, torch.Generator().manual_seed(0))
    assert 0 < scores["unchanged_f1"] < 1
    changed = dataclasses.replace(seen, mask=seen.mask[:, :1].expand_as(seen.mask))
    assert model_scores(trainer.model, changed, torch.Generator())["unchanged_f1"] == 1.0
    known = trainer.replay.joined()
    mine = gaussian_loss(trainer.model, seen, seen)
    assert mine <= gaussian_loss(trainer.model, known, seen), "no Gaussian fits better than their own"
    torch.testing.assert_close(gaussian_loss(trainer.model, known, seen.padded(2)), scores["fresh_gaussian"])
    with torch.no_grad():
        assert scores["fresh_mask"] == pytest.approx(float(trainer.model.loss(seen)["mask"]))
    assert abs(scores["promised_return"]) < 10


def test_returns_of_imagination_are_of_one_episode() -> None:
    rewards = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    ended = torch.tensor([[False, False], [True, False], [False, False]])
    zero = torch.zeros(3, 2)
    states: list[LatentState] = []
    rollout = Rollout(states, zero, zero, rewards, torch.zeros(4, 2), ended, ended, ended | True)
    assert first_returns(rollout).tolist() == [3.0, 7.0]
