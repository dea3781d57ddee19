"""The one command for new hardware: training/retrain.py, training/device/prices.py."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import GRAPHS, LIBRARY
from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.errors import OptionsError
from torchrlopt.machine.cost import device_model
from torchrlopt.plan.search import Plan
from training.config import Config
from training.device.prices import Prices, cost_of, prices_of
from training.retrain import Target, main, retrain
from training.scores.evaluate import Score, scores_of, table_of

SMALL = Config.of_row(
    "wm_plus", groups=2, rollouts=2, max_steps=3, dream_batch=8, dream_horizon=2, dream_updates=1,
    model_epochs=1, epochs=1, updates=3,
)  # fmt: skip


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


@pytest.mark.nightly
def test_what_was_measured_for_one_target_is_not_taken_for_another(tmp_path: Path) -> None:
    retrain(SMALL, tmp_path, Target("cuda"), test_graphs=1)
    (tmp_path / "state.pt").unlink()  # as where a run was killed before it was ever saved
    with pytest.raises(FileExistsError, match="--resume"):
        retrain(SMALL, tmp_path, Target("cpu"), test_graphs=1)
    with pytest.raises(OptionsError, match="for another target"):
        retrain(SMALL, tmp_path, Target("cpu"), resume=True, test_graphs=1)


@pytest.mark.nightly
def test_a_target_for_which_nothing_was_measured_does_not_hold_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such model"):
        retrain(SMALL, tmp_path, Target("cpu", models=("no such model",)), test_graphs=1)
    retrain(SMALL, tmp_path, Target("cuda"), test_graphs=1)
    assert json.loads((tmp_path / "target.json").read_text())["device"] == "cuda"


def test_a_run_writes_agent_scores_and_card_and_can_be_continued(tmp_path: Path) -> None:
    scores = retrain(SMALL, tmp_path, Target("cuda"), test_graphs=2)
    assert scores["greedy"].to_greedy == 1.0
    assert scores["agent"].to_greedy <= 1.0 < scores["annealing"].to_greedy
    assert scores["agent"].expansions > scores["greedy"].expansions, "it goes on where greedy has ended"
    agent = checkpoint.load(tmp_path / "agent.safetensors", LIBRARY)
    assert json.loads(agent.metadata["prices"]) == prices_of(device_model("eager", "cuda")).rates
    stored = json.loads((tmp_path / "scores.json").read_text())
    assert stored["agent"] == dataclasses.asdict(scores["agent"])
    text = (tmp_path / "CARD.md").read_text()
    assert "\n".join(table_of(scores)) in text
    assert "| geometric mean |" in (tmp_path / "REPORT.md").read_text()
    assert {path.name for path in tmp_path.glob("*.png")} == {"training.png", "scores.png"}
    assert LIBRARY.hash in text
    retrain(dataclasses.replace(SMALL, updates=4), tmp_path, Target("cuda"), resume=True, test_graphs=1)
    packaged = checkpoint.load(catalogue.SHIPPED, LIBRARY).metadata["updates"]
    updates = checkpoint.load(tmp_path / "agent.safetensors", LIBRARY).metadata["updates"]
    assert updates in ("4", packaged)


def better_by_far(name: str) -> Callable[..., dict[str, Score]]:
    """Scores as they are, but one searcher wins."""

    def scored(plans: Mapping[str, Sequence[Plan]]) -> dict[str, Score]:
        scores = scores_of(plans)
        return {**scores, name: dataclasses.replace(scores[name], ratio=0.01)}

    return scored


@pytest.mark.nightly
def test_the_packages_agent_is_written_where_it_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.retrain.scores_of", better_by_far("shipped"))
    retrain(SMALL, tmp_path, Target("cuda"), test_graphs=1)
    package = checkpoint.load(catalogue.SHIPPED, LIBRARY)
    agent = checkpoint.load(tmp_path / "agent.safetensors", LIBRARY)
    for name, tensor in package.network.state_dict().items():
        assert torch.equal(agent.network.state_dict()[name], tensor)
    assert agent.metadata["updates"] == package.metadata["updates"]
    assert agent.metadata["scores"] != package.metadata["scores"]
    assert "this training found no better one" in (tmp_path / "CARD.md").read_text()


@pytest.mark.parametrize(
    ("config", "test_graphs", "message"),
    [
        (Config.of_row("plan"), 1, "only one kind.*training.train --row plan"),
        (Config.of_row("wm"), 1, "only one kind.*training.train --row wm"),
        (dataclasses.replace(SMALL, graph="ensemble_mlp"), 1, "got: graph=ensemble_mlp; .*train --graph"),
        (SMALL, 0, "compared on held-out graphs; expected: 1 or more; got: 0"),
    ],
)
def test_what_makes_no_agent_or_cannot_be_tested_is_refused(
    config: Config, test_graphs: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionsError, match=message):
        retrain(config, tmp_path / "run", Target("cuda"), test_graphs=test_graphs)
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_the_command_retrains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = (
        "--groups 2 --rollouts 2 --max-steps 3 --updates 3 --epochs 1 --test-graphs 1 --device cuda "
        "--dream-batch 8 --dream-horizon 2 --dream-updates 1 --model-epochs 1 --workers 2"
    )
    monkeypatch.setattr("sys.argv", ["retrain.py", "--out", str(tmp_path), *small.split()])
    main()
    assert json.loads((tmp_path / "config.json").read_text())["row"] == "wm_plus"
    assert "Row `wm_plus`, 3 updates" in (tmp_path / "CARD.md").read_text()
    checkpoint.load(tmp_path / "agent.safetensors", LIBRARY)
