"""Golden outputs of the shipped agent on three graphs, and the package's promises about it.

`python -m tests.agent.test_golden` regenerates the golden file, after another agent was shipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import COST, GRAPHS, LIBRARY
from tests.core.test_search import THREE
from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.networks.candidate_controller import CandidateController
from torchrlopt.agent.observation import observe
from torchrlopt.options import SearchOptions
from torchrlopt.searcher_table import agent_names
from training.scores.evaluate import Score, table_of
from training.ship import LIBRARIES

GOLDEN = Path(__file__).with_name("agent_golden.json")
MAX_BYTES = 8 * 2**20


def agent(name: str = "agent") -> Agent:
    return checkpoint.load(catalogue.path_of(SearchOptions(searcher=name)), LIBRARY)


def score_of(given: Agent, library: str) -> Score:
    return Score(**json.loads(given.metadata["scores"])[library])


def opinions() -> list[dict[str, object]]:
    """Log-probabilities of all actions and the value, graph by graph."""
    controller = agent().controller
    assert isinstance(controller, CandidateController)
    found: list[dict[str, object]] = []
    for graph in (*GRAPHS, _C.parse_graph(THREE)):
        env = _C.VecRewriteEnv([graph], LIBRARY, COST)
        env.reset([0], [{}])
        with torch.no_grad():
            log_probs, _, value_logits = controller(observe(env))
            value = float(controller.value.mean(value_logits)[0])
        found.append({"log_probs": [round(each, 5) for each in log_probs.tolist()], "value": round(value, 6)})
    return found


def test_golden_opinions() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for mine, expected in zip(opinions(), golden, strict=True):
        assert mine["log_probs"] == pytest.approx(expected["log_probs"], rel=1e-4, abs=2e-3)
        assert mine["value"] == pytest.approx(expected["value"], abs=1e-3)


@pytest.mark.parametrize("name", agent_names())
def test_every_agent_is_there_small_and_says_where_it_comes_from(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = agent(name)
    assert catalogue.path_of(SearchOptions(searcher=name)).stat().st_size < MAX_BYTES
    assert not caplog.records, "trained with this library"
    metadata = given.metadata
    assert metadata["row"] == (catalogue.DEFAULT_ROW if name == "agent" else name)
    assert float(metadata["hours"]) > 0
    assert int(metadata["real_steps"]) > 0
    assert json.loads(metadata["manifest"])["held_out_families"]
    card = (catalogue.FOLDER / "CARD.md").read_text()
    assert f"| {metadata['row']} | {metadata['updates']} |" in card
    for library in LIBRARIES:
        assert table_of({metadata["row"]: score_of(given, library)})[-1] in card


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_agent_was_better_than_greedy_where_it_was_scored(library: str) -> None:
    score = score_of(agent(), library)
    assert score.to_greedy < 1.0
    assert score.better > 0


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(opinions(), indent=1) + "\n", encoding="utf-8")
