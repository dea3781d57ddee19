"""The one command for new hardware: training/retrain.py, training/device/prices.py."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import GRAPHS, LIBRARY
from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.errors import AgentError, OptionsError
from torchrlopt.machine.cost import device_model
from torchrlopt.plan.search import Plan
from training.config import ROWS, Config
from training.device.prices import Prices, cost_of, prices_of
from training.real_trainer import RealTrainer
from training.retrain import Target, main, retrain
from training.scores.evaluate import Score, scores_of, table_of

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


@pytest.mark.nightly
def test_what_was_measured_for_one_target_is_not_taken_for_another(tmp_path: Path) -> None:
    retrain(SMALL, tmp_path, Target("cuda"), test_graphs=1)
    (tmp_path / "state.pt").unlink()  # as where a run was killed before it was ever saved
    with pytest.raises(FileExistsError, match="--resume"):
        retrain(SMALL, tmp_path, Target("cpu"), test_graphs=1)
    with pytest.raises(OptionsError, match="for another target"):
        retrain(SMALL, tmp_path, Target("cpu"), resume=True, test_graphs=1)


def test_nothing_is_trained_where_nothing_is_to_be_tested(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="compared on held-out graphs; expected: 1 or more; got: 0"):
        retrain(SMALL, tmp_path / "run", Target("cpu"), test_graphs=0)
    assert not (tmp_path / "run").exists()


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
    retrain(dataclasses.replace(SMALL, updates=3), tmp_path, Target("cuda"), resume=True, test_graphs=1)
    assert checkpoint.load(tmp_path / "agent.safetensors", LIBRARY).metadata["updates"] == "3"


def better_by_far(name: str) -> Callable[..., dict[str, Score]]:
    """Scores as they are, but one searcher wins."""

    def scored(plans: Mapping[str, Sequence[Plan]]) -> dict[str, Score]:
        scores = scores_of(plans)
        return {**scores, name: dataclasses.replace(scores[name], ratio=0.01)}

    return scored


@pytest.mark.nightly
@pytest.mark.parametrize("encoder", ["local", "graph_network"])
def test_the_packages_agent_is_written_where_it_is_better_whatever_the_sizes(
    encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("training.retrain.scores_of", better_by_far("shipped"))
    config = dataclasses.replace(SMALL, encoder=encoder, updates=1)
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        retrain(config, tmp_path, Target("cuda"), test_graphs=1)
    assert f"plan begins at random: its sizes are {Config().encoder} encoder, width 48" in caplog.text
    package = checkpoint.load(catalogue.FOLDER / f"{catalogue.DEFAULT_ROW}.safetensors", LIBRARY)
    agent = checkpoint.load(tmp_path / "agent.safetensors", LIBRARY)
    for name, tensor in package.controller.state_dict().items():
        assert torch.equal(agent.controller.state_dict()[name], tensor)
    assert agent.metadata["updates"] == package.metadata["updates"]
    assert agent.metadata["scores"] != package.metadata["scores"]
    assert "this training found no better one" in (tmp_path / "CARD.md").read_text()


@pytest.mark.nightly
def test_training_goes_on_from_the_packages_agent_where_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("training.retrain.scores_of", better_by_far("agent"))
    config = Config(row="mf", groups=1, rollouts=2, max_steps=2, epochs=1, updates=1, learning_rate=0.0)
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        retrain(config, tmp_path, Target("cuda"), test_graphs=1)
    assert "begins at random" not in caplog.text
    package = checkpoint.load(catalogue.FOLDER / "mf.safetensors", LIBRARY)
    agent = checkpoint.load(tmp_path / "agent.safetensors", LIBRARY)
    assert agent.metadata["updates"] == "1"
    for name, tensor in package.controller.state_dict().items():
        assert torch.equal(agent.controller.state_dict()[name], tensor), "without a step of learning"


def test_a_trainer_refuses_to_go_on_from_other_networks_before_it_makes_anything(tmp_path: Path) -> None:
    latent = checkpoint.load(catalogue.FOLDER / "wm.safetensors", LIBRARY)
    other = checkpoint.load(catalogue.FOLDER / "plan.safetensors", LIBRARY)
    for start, reason in (
        (latent, "plays in a world model"),
        (other, "width 48, .* here .*width 16"),
    ):
        with pytest.raises(AgentError, match=reason):
            RealTrainer(SMALL, tmp_path / "run", start=start)
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("row", ["wm", "wm_plus"])
def test_rows_of_world_models_are_trained_by_dreaming(
    row: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = dataclasses.replace(
        Config.of_row(row), groups=2, rollouts=2, max_steps=3, dream_batch=8, dream_horizon=2,
        dream_updates=1, model_epochs=1, updates=3,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        scores = retrain(config, tmp_path, Target("cuda"), test_graphs=1)
    assert "learnt from the beginning" in caplog.text
    assert "random_network" not in scores
    text = (tmp_path / "CARD.md").read_text()
    assert f"Row `{row}`, 3 updates" in text
    metadata = checkpoint.load(tmp_path / "agent.safetensors", LIBRARY).metadata
    kept = "found no better one" in text
    assert (metadata["row"], metadata["kind"]) == (
        (catalogue.DEFAULT_ROW, "candidates") if kept else (row, "latent")
    )


@pytest.mark.nightly
@pytest.mark.parametrize("row", ROWS)
def test_the_command_retrains_every_row(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = (
        "--groups 2 --rollouts 2 --max-steps 3 --updates 3 --epochs 1 --test-graphs 1 --device cuda "
        "--dream-batch 8 --dream-horizon 2 --dream-updates 1 --model-epochs 1 --workers 2 --collector threads"
    )
    command = ["retrain.py", "--row", row, "--out", str(tmp_path), *small.split()]
    monkeypatch.setattr("sys.argv", command)
    main()
    assert json.loads((tmp_path / "config.json").read_text())["row"] == row
    assert f"Row `{row}`, 3 updates" in (tmp_path / "CARD.md").read_text()
    checkpoint.load(tmp_path / "agent.safetensors", LIBRARY)
