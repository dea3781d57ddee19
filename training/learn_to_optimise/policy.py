"""A policy over continuous actions, for the learner that also trains the policies over graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from torchrlopt.agent.networks.candidate_controller import Decision, Draw

LEAST_LOG_STD, MOST_LOG_STD = -4.0, 1.0


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs))


class SquaredValue(nn.Module):
    """Estimates of returns, learnt by squared error.

    Args:
        inputs: D, of a state.
        hidden: of the network.
        unit: in which returns are learnt.
    """

    def __init__(self, inputs: int, hidden: int, unit: float) -> None:
        super().__init__()
        self.unit = unit
        self.net = _mlp(inputs, hidden, 1)

    def forward(self, states: Tensor) -> Tensor:
        """[B, 1] of [B, D], in units."""
        found: Tensor = self.net(states)
        return found

    def loss(self, logits: Tensor, values: Tensor) -> Tensor:
        """See `torchrlopt.agent.networks.candidate_controller.Value`."""
        return (logits.squeeze(-1) - values / self.unit).square()


class GaussianPolicy(nn.Module):
    """Actions [B, A] with a mean in [-1, 1] and a deviation, both of which depend on the state.

    It is a `Policy`. In double precision: these networks are so small that it costs nothing, and the
    probability of an action is the same to many digits whatever else is in its batch.

    Args:
        inputs: D, of a state.
        actions: A.
        hidden: of the networks.
        unit: of returns.
    """

    def __init__(self, inputs: int, actions: int, hidden: int = 64, unit: float = 1.0) -> None:
        super().__init__()
        self.net = _mlp(inputs, hidden, 2 * actions)
        self.value = SquaredValue(inputs, hidden, unit)
        self.double()

    def collate(self, states: Sequence[Tensor]) -> Tensor:
        """Several states [D] as one batch."""
        return torch.stack(list(states))

    def pick(self, states: Tensor, rows: Sequence[int]) -> list[Tensor]:
        """Some states of a batch."""
        return list(states[list(rows)])

    def size(self, state: Tensor) -> int:
        """All states are of one size."""
        return 1

    def distribution(self, states: Tensor) -> Normal:
        """Of the actions in states [B, D]."""
        mean, spread = self.net(states).chunk(2, dim=-1)
        log_std = LEAST_LOG_STD + (MOST_LOG_STD - LEAST_LOG_STD) * spread.sigmoid()
        return Normal(mean.tanh(), log_std.exp(), validate_args=False)

    def act(self, states: Tensor, draw: Draw) -> tuple[Tensor, Decision]:
        """Actions [B, A]; without noise the mean. `draw` gives standard normal noise."""
        told = self.distribution(states)
        noise = draw([told.mean.shape[1]] * len(states)).view_as(told.mean)
        actions = told.mean + told.stddev * noise
        return actions, self._decision(states, told, actions)

    def evaluate(self, states: Tensor, actions: Tensor) -> Decision:
        """See `Policy`."""
        return self._decision(states, self.distribution(states), actions)

    def entropy(self, states: Tensor) -> Tensor:
        """[B]."""
        return self.distribution(states).entropy().sum(-1)

    def _decision(self, states: Tensor, told: Normal, actions: Tensor) -> Decision:
        estimates = self.value(states)
        return Decision(
            told.log_prob(actions).sum(-1),
            told.entropy().sum(-1),
            estimates.squeeze(-1) * self.value.unit,
            estimates,
        )
