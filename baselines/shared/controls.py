"""Controls of the agent: its own search, guided by something untrained."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.networks.agent_network import AgentNetwork
from torchrlopt.agent.search.searcher import AgentSearcher

NO_NETWORK = "no_network"
RANDOM_NETWORK = "random_network"
SHUFFLED_NETWORK = "shuffled_network"
NAMES = (NO_NETWORK, RANDOM_NETWORK, SHUFFLED_NETWORK)
KAPPA = 10.0  # slope of a substitution's likelihood in its saving, the initial value of the policy


def without_network(given: AgentNetwork) -> AgentNetwork:
    """Substitutions are drawn by what they save alone, and locations uniformly."""
    control = copy.deepcopy(given)
    policy = control.policy
    with torch.no_grad():
        for layer in (policy.key, policy.location[-1]):
            for parameter in layer.parameters():
                parameter.zero_()
        policy.log_kappa.fill_(math.log(KAPPA))
    return control


def random_network(given: AgentNetwork, seed: int) -> AgentNetwork:
    """Every layer drawn anew, with a unit spread where a policy scores substitutions."""
    control = copy.deepcopy(given)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in control.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5, generator=generator)
            else:
                parameter.zero_()
        for module in control.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.fill_(1.0)
        control.policy.key.weight.normal_(std=1.0, generator=generator)
        control.policy.log_kappa.fill_(math.log(KAPPA))
    return control


def shuffled_network(given: AgentNetwork, seed: int) -> AgentNetwork:
    """Each weight tensor permuted: same sizes and spreads."""
    control = copy.deepcopy(given)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in control.parameters():
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.copy_(parameter.flatten()[order].reshape(parameter.shape))
    return control


def control(name: str, agent: Agent, seed: int) -> AgentSearcher:
    """The agent's search with a control as its network, under the control's name."""
    if name == NO_NETWORK:
        network = without_network(agent.network)
    else:
        make = random_network if name == RANDOM_NETWORK else shuffled_network
        network = make(agent.network, seed)
    return AgentSearcher(Agent(network, {}), name)
