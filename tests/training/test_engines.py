"""Other libraries' training loops: training/engines."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from torchrlopt.agent.observation import Observation, observe
from torchrlopt.env import Padding
from torchrlopt.env.observation import Arrays, columns
from training import train
from training.config import Config
from training.device.prices import typical_prices
from training.engines.curriculum_env import CurriculumEnv, Episodes
from training.engines.unpadding import unpadded
from training.trainer import read_log

FIELDS = {field.name for field in dataclasses.fields(Observation)}


def arrays_of(seen: Observation) -> Arrays:
    return {name: getattr(seen, name).numpy() for name in FIELDS}


def episodes(number: int) -> CurriculumEnv:
    return CurriculumEnv({"episodes": Episodes(Config.of_row("mf"), typical_prices()), "number": number})


def test_an_observation_survives_padding() -> None:
    """Whatever the networks read of it."""
    padded, seen = [], []
    for number in range(3):
        env = episodes(number)
        env.reset()
        core = env.env.core
        seen.append(observe(core))
        padded.append(env.env.padding.pad(arrays_of(seen[-1]), 1))
    batch = {name: torch.from_numpy(np.concatenate([each[name] for each in padded])) for name in padded[0]}
    found = unpadded(batch)
    for index, expected in enumerate(seen):
        own = found.episode(index)
        for name in FIELDS - {"locations"}:
            assert torch.equal(getattr(own, name), getattr(expected, name)), name


def test_rows_that_do_not_fit_are_left_out() -> None:
    env = episodes(1)
    env.reset()
    arrays = arrays_of(observe(env.env.core))
    small = Padding(nodes=4, edges=5, candidates=2, matched=1)
    own = unpadded({name: torch.from_numpy(each) for name, each in small.pad(arrays, 1).items()})
    assert own.nodes.shape == (4, len(columns("node")))
    assert own.edge_index.max() < 4
    assert len(own.candidates) == 2
    assert bool((own.matched < 4).all())


def test_episodes_differ_by_their_number_and_end() -> None:
    graphs = []
    for number in (0, 0, 1):
        env = episodes(number)
        env.reset()
        graphs.append(env.env.graph.text())
    assert graphs[0] == graphs[1] != graphs[2]
    _, reward, terminated, _, _ = env.step(np.int64(env.env.padding.candidates))
    assert terminated
    assert reward == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--engine", "rllib"], r"RLlib is not installed.*pip install"),
        (["--ray", "10.0.0.1:6379"], r"only RLlib trains on a cluster.*--engine rllib"),
    ],
)
def test_the_command_says_what_rllib_needs(
    given: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "training.engines.rllib", raising=False)
    monkeypatch.setattr(sys, "argv", ["train", "--out", str(tmp_path / "run"), *given])
    with pytest.raises(SystemExit):
        train.main()
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("algo", ["ppo", "appo", "impala", "dqn"])
def test_rllib_trains_and_resumes(algo: str, tmp_path: Path) -> None:
    pytest.importorskip("ray.rllib", reason="the extra `rllib` is not installed")
    command = [sys.executable, "-m", "training.train", "--row", "mf", "--engine", "rllib", "--algo", algo]
    command += ["--num-env-runners", "1", "--batch", "64", "--out", str(tmp_path)]
    subprocess.run([*command, "--updates", "1"], check=True, timeout=600)
    subprocess.run([*command, "--updates", "3", "--resume"], check=True, timeout=600)
    steps = [value for _, value in read_log(tmp_path)["real_steps"]]
    assert len(steps) == 3
    assert steps[0] <= steps[1] <= steps[2] > 64
    assert (tmp_path / "networks.safetensors").exists()
