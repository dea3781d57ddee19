"""From finished runs to shipped agents: training/ship.py."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import LIBRARY
from torchrlopt.agent import checkpoint
from torchrlopt.errors import OptionsError
from torchrlopt.machine.cost import device_model
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import prices_of
from training.dream_trainer import DreamTrainer
from training.real_trainer import RealTrainer
from training.ship import ship

SMALL = Config(
    groups=1,
    rollouts=2,
    max_steps=3,
    width=16,
    rounds=2,
    epochs=1,
    teacher_expansions=20,
    dream_batch=8,
    dream_horizon=2,
    dream_updates=1,
    model_epochs=1,
)


def test_runs_become_agents_with_their_scores(tmp_path: Path) -> None:
    prices = prices_of(device_model("eager", "cpu", threads=1))
    plan = RealTrainer(SMALL, tmp_path / "plan", prices=prices)
    plan.step()
    plan.save()
    config = dataclasses.replace(SMALL, row="wm", encoder="graph_network")
    dream = DreamTrainer(config, tmp_path / "wm", prices=prices)
    dream.begin()
    dream.step()
    dream.save()
    target = tmp_path / "shipped"
    scores = ship([tmp_path / "plan", tmp_path / "wm"], target, graphs=2, expansions=12)
    assert set(scores) == {"the full library", "primitives only"}
    for entries in scores.values():
        assert set(entries) == {"greedy", "beam", "taso", "annealing", "random_network", "plan", "wm"}
        assert entries["greedy"].to_greedy == 1.0
        for row in ("plan", "wm"):
            assert entries[row].expansions >= 12, "it goes on where greedy has ended"
            assert entries[row].ratio <= entries["greedy"].ratio
    for row, trainer in (("plan", plan), ("wm", dream)):
        agent = checkpoint.load(target / f"{row}.safetensors", LIBRARY)
        for name, tensor in trainer.controller.state_dict().items():
            assert torch.equal(agent.controller.state_dict()[name], tensor)
        stored = json.loads(agent.metadata["scores"])
        assert stored["primitives only"] == dataclasses.asdict(scores["primitives only"][row])
        assert agent.metadata["library_hash"] == load_library().hash
    card = (target / "CARD.md").read_text()
    assert "| plan | 1 |" in card
    assert "2 held-out graphs, primitives only, at most 12 expansions each" in card
    stored = checkpoint.load(target / "wm.safetensors", LIBRARY).metadata["scores"]
    world = json.loads(stored)["world"]
    assert set(world) == {"new graphs, known families", "held-out families"}
    for title, told in world.items():
        assert 0 <= told["mask_f1"] <= 1
        assert f"| wm | {title} | {told['predicted_gain']:.3f} | {told['real_gain']:.3f} |" in card


def test_runs_with_other_prices_are_refused(tmp_path: Path) -> None:
    trainer = RealTrainer(SMALL, tmp_path / "plan", prices=prices_of(device_model("eager", "cpu", threads=2)))
    trainer.step()
    trainer.save()
    with pytest.raises(OptionsError, match="prices"):
        ship([tmp_path / "plan"], tmp_path / "shipped", graphs=1, expansions=1)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ship([tmp_path], tmp_path / "shipped", graphs=1, expansions=1)
