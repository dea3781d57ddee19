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
from training.ship import ship

SMALL = Config.of_row(
    "wm_plus",
    groups=1,
    rollouts=2,
    max_steps=3,
    epochs=1,
    dream_batch=8,
    dream_horizon=2,
    dream_updates=1,
    model_epochs=1,
)


def test_a_run_becomes_the_agent_with_its_scores(tmp_path: Path) -> None:
    dream = DreamTrainer(SMALL, tmp_path / "run", prices=prices_of(device_model("eager", "cpu", threads=1)))
    dream.begin()
    dream.step()
    dream.save()
    target = tmp_path / "shipped"
    scores = ship(tmp_path / "run", target, graphs=2, expansions=12)
    assert set(scores) == {"the full library", "primitives only"}
    for entries in scores.values():
        assert set(entries) == {"greedy", "beam", "taso", "annealing", "random_network", "agent"}
        assert entries["greedy"].to_greedy == 1.0
        assert entries["agent"].ratio <= entries["greedy"].ratio
    agent = checkpoint.load(target / "agent.safetensors", LIBRARY)
    for name, tensor in agent.network.state_dict().items():
        torch.testing.assert_close(tensor, dream.controller.state_dict()[name], rtol=2**-15, atol=0)
        assert not (tensor.flatten().view(torch.int32) & 0xFF).any()
    assert {path.name for path in target.iterdir()} == {"agent.safetensors", "agent.json", "CARD.md"}
    stored = json.loads(agent.metadata["scores"])
    assert stored["primitives only"] == dataclasses.asdict(scores["primitives only"]["agent"])
    assert agent.metadata["library_hash"] == load_library().hash
    card = (target / "CARD.md").read_text()
    assert "| wm_plus | 3 |" in card
    assert "2 held-out graphs, primitives only, at most 12 expansions each" in card
    assert set(stored["world"]) == {"new graphs, known families", "held-out families"}
    for title, told in stored["world"].items():
        assert 0 <= told["mask_f1"] <= 1
        assert f"| wm_plus | {title} | {told['predicted_gain']:.3f} | {told['real_gain']:.3f} |" in card


def test_runs_with_other_prices_and_of_other_rows_are_refused(tmp_path: Path) -> None:
    for row, threads in (("wm_plus", 2), ("wm", 1)):
        prices = prices_of(device_model("eager", "cpu", threads=threads))
        DreamTrainer(dataclasses.replace(SMALL, row=row), tmp_path / row, prices=prices).save()
    with pytest.raises(OptionsError, match="prices"):
        ship(tmp_path / "wm_plus", tmp_path / "shipped", graphs=1, expansions=1)
    with pytest.raises(OptionsError, match="no agents of this row"):
        ship(tmp_path / "wm", tmp_path / "shipped", graphs=1, expansions=1)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ship(tmp_path, tmp_path / "shipped", graphs=1, expansions=1)
