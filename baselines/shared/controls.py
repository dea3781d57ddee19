"""Controls of the agent: its own search, guided by something untrained."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.checkpoint import Agent, new_controller, random_control
from torchrlopt.agent.networks.candidate_controller import CandidateController, no_noise
from torchrlopt.agent.networks.ragged import segment_log_softmax
from torchrlopt.agent.observation import Observation
from torchrlopt.agent.search.searcher import AgentSearcher

NO_NETWORK = "no_network"
RANDOM_NETWORK = "random_network"
SHUFFLED_NETWORK = "shuffled_network"
NAMES = (NO_NETWORK, RANDOM_NETWORK, SHUFFLED_NETWORK)
KAPPA = 100.0  # slope of a candidate's likelihood in its saving, the initial value of the networks


class CostGuide:
    """Rates candidates by their exact cost differences alone; see `Guide`. It predicts no further gain.

    Args:
        num_substitutions: of the library.
    """

    def __init__(self, num_substitutions: int) -> None:
        self.num_substitutions = num_substitutions

    def rate(self, states: Observation) -> tuple[Tensor, Tensor]:
        """See `Guide`."""
        count = states.num_episodes
        logits = -KAPPA * states.column("candidate", "cost_delta")
        return segment_log_softmax(logits, states.candidate_episode, count), no_noise([1] * count)


def shuffled_control(agent: Agent, library: _C.Library, seed: int) -> Agent:
    """The agent's network with each weight tensor permuted: same sizes and spreads.

    Args:
        agent: one that scores candidates.
        library: the substitutions.
        seed: of the permutation.
    """
    given = agent.controller
    assert isinstance(given, CandidateController)
    control = new_controller(library, given.config, schema=given.schema)
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: tensor.flatten()[torch.randperm(tensor.numel(), generator=generator)].reshape(tensor.shape)
        for name, tensor in given.state_dict().items()
    }
    control.load_state_dict(state)
    return Agent(control.eval(), {})


def control(name: str, agent: Agent, library: _C.Library, seed: int) -> AgentSearcher:
    """The agent's search with a control as its guide, under the control's name."""
    if name == NO_NETWORK:
        return AgentSearcher(Agent(CostGuide(len(library)), {}), name)
    make = random_control if name == RANDOM_NETWORK else shuffled_control
    return AgentSearcher(make(agent, library, seed), name)
