"""A run is determined by its arguments, prices and graph: training/config.py, trainer.py."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY, TWINS
from torchrlopt import _C
from torchrlopt.agent.observation import observe
from torchrlopt.errors import OptionsError
from torchrlopt.machine.cost import device_model
from training.config import Config
from training.device.prices import prices_of
from training.episodes import latent_task
from training.graphs.samplers import entropy_on
from training.random_keys import Purpose, generator, gumbel
from training.real_trainer import RealTrainer
from training.samplers import SAMPLERS
from training.train import add_arguments, config_of, trainer_of
from training.trainer import log, read_log

SMALL = Config(groups=2, rollouts=3, max_steps=3, width=16, rounds=2, epochs=1, warm_up=4)


def test_a_run_goes_on_by_the_rewards_that_it_began_with_only(tmp_path: Path) -> None:
    one, two = (prices_of(device_model("eager", "cpu", threads=threads)) for threads in (1, 2))
    RealTrainer(SMALL, tmp_path, prices=one, graph=GRAPHS[0]).save()
    RealTrainer(SMALL, tmp_path, resume=True, prices=one, graph=GRAPHS[0])
    with pytest.raises(OptionsError, match="begun with another prices"):
        RealTrainer(SMALL, tmp_path, resume=True, prices=two, graph=GRAPHS[0])
    with pytest.raises(OptionsError, match="begun with another graph"):
        RealTrainer(SMALL, tmp_path, resume=True, prices=one, graph=GRAPHS[1])


def test_what_a_run_logged_before_it_was_ever_saved_is_not_of_the_next_one(tmp_path: Path) -> None:
    RealTrainer(SMALL, tmp_path)
    log(tmp_path, 6, {"mean_return": 0.5})
    second = RealTrainer(SMALL, tmp_path)
    assert not read_log(tmp_path)
    log(tmp_path, 1, {"mean_return": 0.1})
    second.save()
    RealTrainer(SMALL, tmp_path, resume=True)
    assert read_log(tmp_path) == {"mean_return": [(1, 0.1)]}, "what was saved keeps its log"


@pytest.mark.parametrize(
    ("name", "value"),
    [("groups", 0), ("width", 0), ("workers", 0), ("discount", 7.0), ("seed", -1), ("updates", -1)],
)
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(OptionsError, match=f"{name} is out of range"):
        Config.of_row("mf", **{name: value})


def test_the_command_of_a_run_makes_the_same_run() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for config in (
        Config.of_row("mf", graph="toy_bert", groups=4, warm_up=100, original_share=0.5),
        Config.of_row("wm", graph="my models/x.onnx", seed=3, macros=True),
        Config.of_row("plan", minutes=2.0),
    ):
        words = shlex.split(config.command())
        assert words[:3] == ["python", "-m", "training.train"]
        assert config_of(parser.parse_args(words[3:])) == config


@pytest.mark.parametrize("has_macros", [False, True])
def test_random_play_of_a_world_model_row_says_how_unsure_it_is(has_macros: bool) -> None:
    graph = _C.parse_graph(TWINS)
    env = _C.VecRewriteEnv([graph], LIBRARY, COST, num_envs=1, has_macros=has_macros)
    env.reset([0], [{}])
    seen = observe(env)
    assert (seen.column("candidate", "is_macro") > 0).any() == has_macros
    watcher = latent_task.Watcher(len(LIBRARY), has_macros)
    draw = gumbel([generator(0, 0, Purpose.EPISODE, 0)], 1.0)
    told = watcher.choose(seen, draw)[3].log_prob
    assert watcher.entropy(seen) > 0
    assert watcher.entropy(seen) == pytest.approx(-float(told[0])), "all that it does is as likely"
    assert entropy_on(graph, LIBRARY, COST, watcher.entropy, watcher.has_macros) == watcher.entropy(seen)


def test_macros_are_asked_of_rows_with_a_world_model_only() -> None:
    assert Config.of_row("wm_plus", macros=True).macros
    with pytest.raises(OptionsError, match="got: plan"):
        Config.of_row("plan", macros=True)


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_world_models_learn_with_every_sampler(sampler: str, tmp_path: Path) -> None:
    config = Config.of_row(
        "wm", sampler=sampler, groups=2, rollouts=2, max_steps=3, updates=3, model_epochs=1, epochs=1,
        dream_updates=1, dream_batch=8, dream_horizon=2,
    )  # fmt: skip
    logs = list(trainer_of(config, tmp_path).updates())
    assert len(logs) == 1, "two of the three updates collect at random"
    assert logs[0]["real_steps"] > 0
    assert logs[0]["imagined_steps"] > 0
