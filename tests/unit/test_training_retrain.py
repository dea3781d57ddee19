"""The one command for new hardware: training/retrain.py, training/device/prices.py."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.unit.agent_cases import GRAPHS, LIBRARY
from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.machine.cost import device_model
from training.config import Config
from training.device.prices import Prices, cost_of, prices_of
from training.retrain import Target, retrain

SMALL = Config(groups=2, rollouts=3, max_steps=3, width=16, rounds=2, epochs=1, updates=2)


def test_prices_travel_as_numbers() -> None:
    for device in ("cpu", "cuda"):
        model = device_model("eager", device)
        prices = prices_of(model)
        assert Prices.from_json(prices.to_json()) == prices
        again = cost_of(prices)
        for graph in GRAPHS:
            assert again.total(graph) == _C.CostModel(model).total(graph)
    assert cost_of(Prices()).total(GRAPHS[0]) == _C.CostModel().total(GRAPHS[0])
    assert cost_of(prices).total(GRAPHS[0]) != _C.CostModel().total(GRAPHS[0])


def test_an_unknown_price_is_refused() -> None:
    with pytest.raises(AttributeError):
        cost_of(Prices({"novelty": 1.0}))


def test_a_run_writes_agent_scores_and_card_and_can_be_continued(tmp_path: Path) -> None:
    scores = retrain(SMALL, tmp_path, Target("cuda"), test_graphs=2)
    assert scores["agent"].to_greedy <= 1.0
    agent = checkpoint.load(tmp_path / "agent.safetensors", LIBRARY)
    assert json.loads(agent.metadata["prices"]) == prices_of(device_model("eager", "cuda")).rates
    stored = json.loads((tmp_path / "scores.json").read_text())
    assert stored["agent"] == dataclasses.asdict(scores["agent"])
    text = (tmp_path / "CARD.md").read_text()
    assert "| random_network |" in text
    assert "| geometric mean |" in (tmp_path / "REPORT.md").read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {"training.png", "scores.png"}
    assert LIBRARY.hash in text
    retrain(dataclasses.replace(SMALL, updates=3), tmp_path, Target("cuda"), resume=True, test_graphs=1)
    assert checkpoint.load(tmp_path / "agent.safetensors", LIBRARY).metadata["updates"] == "3"
