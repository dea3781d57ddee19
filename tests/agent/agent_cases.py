"""Small graphs and environments for the tests of the agent."""

from __future__ import annotations

from typing import Any

import torch

from tests.property.test_match_set import ATTENTION, BLOCK
from torchrlopt import _C
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.networks.agent_network import AgentConfig, AgentNetwork
from torchrlopt.agent.observation import Observation, Schema, observe
from torchrlopt.agent.undisturbed_torch import making_networks
from torchrlopt.substitutions import load_library

LIBRARY = load_library()
COST = _C.CostModel()
TEXTS = (ATTENTION, BLOCK)
#: Two layers that are alike: what fits at one fits at both.
TWINS = """
graph (x: f32[1,8,32], %a: f32[32,32], %b: f32[32,32], %c: f32[32], %d: f32[32]) {
  n = Sigmoid(x)
  p = MatMul(n, %a)
  q = Add(p, %c)
  r = Sigmoid(q)
  s = MatMul(r, %b)
  t = Add(s, %d)
  u = Sigmoid(t)
  return u
}
"""
GRAPHS = tuple(_C.parse_graph(text) for text in TEXTS)


def make_env(num_envs: int = 2, **options: object) -> _C.VecRewriteEnv:
    """Episodes over the graphs in turn, each after as many random steps as its number."""
    env = _C.VecRewriteEnv(list(GRAPHS), LIBRARY, COST, num_envs=num_envs, **options)
    starts = [{"graph": i % len(GRAPHS), "random_steps": i, "seed": i} for i in range(num_envs)]
    env.reset(list(range(num_envs)), starts)
    return env


def make_observation(num_envs: int = 2) -> Observation:
    return observe(make_env(num_envs))


def new_network(
    library: _C.Library = LIBRARY, seed: int = 0, schema: Schema | None = None, **sizes: Any
) -> AgentNetwork:
    """Untrained networks, whose substitutions have random embeddings."""
    with making_networks(seed):
        network = AgentNetwork(schema or Schema.current(), AgentConfig(**sizes), library.names)
        for part in (network.model, network.policy):
            part.rules.normal_(generator=torch.Generator().manual_seed(seed))
    return network.eval()


def new_agent(library: _C.Library = LIBRARY, seed: int = 0) -> Agent:
    return Agent(new_network(library, seed), {})
