"""Graphs by key, rewards, collection and resumption: training/graphs/, episodes/, real_trainer.py."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.agent.agent_cases import COST, LIBRARY, make_env
from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.agent.networks.actions import no_noise
from torchrlopt.agent.observation import observe
from torchrlopt.agent.search.searcher import AgentSearcher
from torchrlopt.env import OUTCOMES
from torchrlopt.env.reward import ILLEGAL, REWARDS
from torchrlopt.errors import OptionsError
from training import checkpoints
from training import random_keys as keys
from training.collectors.data_hash import data_hash
from training.collectors.worker import state_of
from training.config import CHOICES, Config
from training.dream_trainer import DreamTrainer
from training.episodes import latent_task
from training.episodes.play import Key
from training.graphs import curriculum as graphs
from training.graphs.blocks import HELD_OUT_FAMILIES
from training.graphs.samplers import draw_sample
from training.networks.candidate_controller import CandidateController
from training.real_trainer import RealTrainer
from training.samplers import Place
from training.scores.evaluate import (
    held_out_graphs,
    plans_of,
    scores_of,
)
from training.train import add_arguments, config_of, trainer_of
from training.trainer import STATE

SMALL = Config(groups=2, rollouts=3, max_steps=3, width=16, rounds=2, epochs=1, warm_up=4)


def same_weights(one: RealTrainer, other: RealTrainer) -> bool:
    pairs = zip(one.controller.parameters(), other.controller.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_key_gives_its_graph_and_its_numbers_always() -> None:
    one, again, other = (graphs.sample_graph(7, i, progress=0.5) for i in (1, 1, 2))
    assert one.graph.canonical_text() == again.graph.canonical_text()
    assert one.graph.canonical_text() != other.graph.canonical_text()
    assert keys.generator(1, 2).random() == keys.generator(1, 2).random() != keys.generator(2, 1).random()
    draw = keys.gumbel([keys.generator(1), keys.generator(2)])
    alone = keys.gumbel([keys.generator(2)])
    assert torch.equal(draw([3, 4])[3:], alone([4]))


def test_training_never_sees_what_is_held_out() -> None:
    train = [graphs.sample_graph(3, i) for i in range(40)]
    held_out = held_out_graphs(10)
    assert not {family for sample in train for family in sample.families} & HELD_OUT_FAMILIES
    structures = [
        {structure for sample in split for structure in sample.structures} for split in (train, held_out)
    ]
    assert not structures[0] & structures[1]
    assert not any(map(graphs.is_held_out, structures[0]))
    for sample in held_out:
        pairs = zip(sample.families, sample.structures, strict=True)
        assert all(
            family in HELD_OUT_FAMILIES or graphs.is_held_out(structure) for family, structure in pairs
        )


def test_a_structure_is_what_is_left_without_sizes() -> None:
    def structure(width: int, op: str = "Relu") -> str:
        sketch = graphs.Sketch()
        return graphs.structure_hash(sketch.finish(sketch.op(op, sketch.linear(sketch.input(4, 8), width))))

    assert structure(8) == structure(16) != structure(8, "Tanh")


def test_graphs_grow_with_progress() -> None:
    def depth(progress: float) -> float:
        return float(
            np.mean([graphs.sample_graph(5, i, progress=progress).parameters["depth"] for i in range(20)])
        )

    assert depth(0.0) == 1.0
    assert depth(1.0) > 1.8


def test_the_uncertain_graph_of_a_pool_is_taken() -> None:
    seen: list[float] = []

    def entropy(graph: _C.Graph) -> float:
        seen.append(COST.total(graph)["time_us"])
        return seen[-1]

    sample = draw_sample("uncertainty", Place(0, 1, 0, 1), (1, 1, 0), 0.0, entropy)
    assert len(seen) == 4
    assert COST.total(sample.graph)["time_us"] == max(seen)


def outcomes(cost: float, traffic: float, best: float = 8.0, illegal: float = 0.0) -> np.ndarray:
    row = np.zeros((1, len(OUTCOMES)))
    values = {
        "cost_after_us": cost,
        "bytes": traffic,
        "best_us": best,
        "initial_us": 10.0,
        "is_illegal": illegal,
    }
    for name, value in values.items():
        row[0, OUTCOMES[name]] = value
    return row


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("best_so_far", 0.1),
        ("R1", 0.8 * 0.2 + 0.2 * 0.5),
        ("R2", 0.3),
        ("R3", 0.1 * 0.2 + 0.9 * 0.5),
        ("R4", 0.5 * 0.2 + 0.5 * 0.5),
        ("R5", 0.2),
    ],
)
def test_rewards_are_shares_of_the_first_cost(name: str, expected: float) -> None:
    first, before = outcomes(10.0, 100.0), outcomes(9.0, 90.0, best=8.0)
    after = outcomes(7.0, 40.0, best=7.0)
    assert REWARDS[name](before, after, first)[0] == pytest.approx(expected)
    scaled = [each.copy() for each in (before, after, first)]
    for each in scaled:
        for column in ("cost_after_us", "bytes", "best_us", "initial_us"):
            each[0, OUTCOMES[column]] *= 1000
    assert REWARDS[name](*scaled)[0] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["R1", "R2", "R3", "R4", "R5"])
def test_an_illegal_action_is_punished(name: str) -> None:
    same = outcomes(9.0, 90.0)
    assert REWARDS[name](same, outcomes(9.0, 90.0, illegal=1.0), same)[0] == ILLEGAL


def test_best_so_far_forgives_a_detour() -> None:
    first, up, down = (
        outcomes(10.0, 1.0, best=10.0),
        outcomes(12.0, 1.0, best=10.0),
        outcomes(6.0, 1.0, best=6.0),
    )
    rewards = [REWARDS["best_so_far"](a, b, first)[0] for a, b in ((first, up), (up, down))]
    assert rewards == pytest.approx([0.0, 0.4])


@pytest.mark.nightly
@pytest.mark.parametrize("row", CHOICES["row"])
def test_data_do_not_depend_on_the_number_of_workers(row: str, tmp_path: Path) -> None:
    keys = [Key(0, 5, group, way=way) for way in latent_task.WAYS for group in range(2)]
    hashes = []
    for workers in (1, 2):
        config = dataclasses.replace(SMALL, row=row, workers=workers)
        trainer = trainer_of(config, tmp_path / str(workers))
        with trainer.collector as collector:
            hashes.append(data_hash(collector.collect(state_of(trainer.controller), keys)))
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("row", ["mf", "plan", "gumbel"])
def test_a_run_that_was_interrupted_goes_on_as_if_nothing_had_happened(tmp_path: Path, row: str) -> None:
    config = dataclasses.replace(SMALL, row=row)
    straight = RealTrainer(config, tmp_path / "straight")
    for _ in range(3):
        logs = straight.step()
    assert logs["gradient_norm"] > 0
    broken = RealTrainer(config, tmp_path / "broken")
    broken.step()
    broken.save()
    broken.step()  # lost
    resumed = RealTrainer(config, tmp_path / "broken", resume=True)
    assert (resumed.update, resumed.real_steps > 0) == (1, True)
    for _ in range(2):
        resumed.step()
    assert same_weights(straight, resumed)
    assert resumed.real_steps == straight.real_steps


def test_a_run_is_neither_overwritten_nor_continued_with_other_arguments(tmp_path: Path) -> None:
    RealTrainer(SMALL, tmp_path).save()
    with pytest.raises(FileExistsError, match="--resume"):
        RealTrainer(SMALL, tmp_path)
    with pytest.raises(OptionsError, match=r"another learning_rate; expected: learning_rate 0\.0"):
        RealTrainer(dataclasses.replace(SMALL, learning_rate=1.0), tmp_path, resume=True)
    RealTrainer(dataclasses.replace(SMALL, minutes=5.0, workers=2), tmp_path, resume=True)
    assert (tmp_path / STATE).stat().st_size > 1000


def test_a_whole_run_ends_in_networks_that_know_where_they_come_from(tmp_path: Path) -> None:
    trainer = RealTrainer(dataclasses.replace(SMALL, updates=2), tmp_path)
    trainer.run()
    network, metadata = checkpoints.load(trainer.export({"held_out": 0.9}), LIBRARY)
    assert isinstance(network, CandidateController)
    assert metadata["updates"] == "2"
    assert json.loads(metadata["scores"]) == {"held_out": 0.9}
    assert json.loads(metadata["manifest"])["held_out_families"] == sorted(HELD_OUT_FAMILIES)
    assert Config.from_json(metadata["config"]) == trainer.config
    states = observe(make_env(2))
    with torch.no_grad():
        mine, its = trainer.controller.eval().act(states, no_noise), network.act(states, no_noise)
    assert torch.equal(mine[0], its[0])
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_scores_are_against_greedy_with_equal_expansions() -> None:
    samples = held_out_graphs(2)
    searchers = {"agent": AgentSearcher(checkpoint.load(catalogue.SHIPPED, LIBRARY))}
    plans = plans_of(searchers, [s.graph for s in samples], LIBRARY, COST, 30)
    scores = scores_of(plans)
    assert set(scores) == {"greedy", "beam", "taso", "annealing", "agent"}
    assert {name: len(each) for name, each in plans.items()} == dict.fromkeys(scores, 2)
    mine, greedy = plans["agent"], plans["greedy"]
    assert all(a.cost_after_ms <= b.cost_after_ms for a, b in zip(mine, greedy, strict=True))
    assert 0 < scores["agent"].ratio < 1


def test_the_graph_network_is_trained_by_pyg_and_runs_without_it(tmp_path: Path) -> None:
    trainer = RealTrainer(dataclasses.replace(SMALL, encoder="graph_network"), tmp_path)
    assert {type(block).__name__ for block in trainer.controller.encoder.blocks} == {"MetaLayer"}
    before = [parameter.clone() for parameter in trainer.controller.encoder.blocks.parameters()]
    trainer.step()
    after = list(trainer.controller.encoder.blocks.parameters())
    assert not any(torch.equal(one, other) for one, other in zip(before[:2], after[:2], strict=True))
    network, _ = checkpoints.load(trainer.export(), LIBRARY)
    assert isinstance(network, CandidateController)
    assert {type(block).__name__ for block in network.encoder.blocks} == {"GraphNetworkBlock"}
    states = observe(make_env(3))
    with torch.no_grad():
        assert torch.equal(network(states)[0], trainer.controller.eval()(states)[0])


def test_options_of_the_command_line_are_the_fields_of_the_configuration() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert config_of(parser.parse_args([])) == Config()
    assert config_of(parser.parse_args(["--row", "mf", "--max-steps", "7"])) == Config(row="mf", max_steps=7)
    dream = config_of(parser.parse_args(["--row", "wm_plus", "--rollouts", "5"]))
    assert (dream.row, dream.encoder, dream.groups, dream.rollouts) == ("wm_plus", "graph_network", 16, 5)


@pytest.mark.parametrize("name", ["row", "reward", "sampler", "encoder"])
def test_a_name_that_is_none_is_refused_with_those_that_are(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OptionsError, match=rf"no such {name}; expected: one of .*{CHOICES[name][-1]}.*typo"):
        Config(**{name: "typo"})
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--{name}", "typo"])
    assert CHOICES[name][-1] in capsys.readouterr().err


def test_every_row_is_trained_by_what_trains_it(tmp_path: Path) -> None:
    for row in CHOICES["row"]:
        config = dataclasses.replace(SMALL, row=row)
        trainer = trainer_of(config, tmp_path / row)
        assert type(trainer) is (DreamTrainer if row.startswith("wm") else RealTrainer)
        assert trainer.provenance()["row"] == row
    with pytest.raises(OptionsError, match="not train this row; expected: mf or plan or gumbel; got: wm"):
        RealTrainer(dataclasses.replace(SMALL, row="wm"), tmp_path / "other")
    with pytest.raises(OptionsError, match="expected: wm or wm_plus; got: plan"):
        DreamTrainer(SMALL, tmp_path / "other")
    assert not (tmp_path / "other").exists()
