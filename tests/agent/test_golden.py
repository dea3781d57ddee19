"""Golden opinions of the shipped agent on three graphs.

`python -m tests.agent.test_golden` regenerates the golden file, after another agent was shipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import GRAPHS, LIBRARY
from tests.core.test_search import THREE
from torchrlopt import _C
from torchrlopt.agent import catalogue, checkpoint
from torchrlopt.agent.networks.actions import Choices, LatentState
from torchrlopt.agent.networks.agent_network import features_of
from torchrlopt.agent.observation import observe

GOLDEN = Path(__file__).with_name("agent_golden.json")


def opinions() -> list[list[float]]:
    """Log-probabilities of the legal substitutions and of stop, graph by graph."""
    network = checkpoint.load(catalogue.SHIPPED, LIBRARY).network
    memory, rows, found = network.model, network.rows_of(LIBRARY.names), []
    for graph in (*GRAPHS, _C.parse_graph(THREE)):
        env = _C.VecRewriteEnv([graph], LIBRARY, _C.CostModel(), has_macros=network.config.has_macros)
        env.reset([0], [{}])
        seen = observe(env)
        legal = Choices(seen, memory.num_substitutions, network.config.has_macros, rows).legal
        with torch.no_grad():
            z = memory.encode(features_of(network.encoder, seen))
            features = torch.cat([z, torch.zeros(1, memory.hidden), memory.situation(legal)], dim=-1)
            log_probs = network.policy.substitutions(LatentState(features, legal))[1]
        found.append([round(each, 5) for each in log_probs[legal.mask].tolist()])
    return found


def test_golden_opinions() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for mine, expected in zip(opinions(), golden, strict=True):
        assert mine == pytest.approx(expected, rel=1e-4, abs=2e-3)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(opinions(), indent=1) + "\n", encoding="utf-8")
