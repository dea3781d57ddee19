"""Proximal policy optimisation of any `Policy`, on real or imagined episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.config import Config
from training.networks.candidate_controller import Policy
from training.rollout import Rollout

RATIO_TOLERANCE = 1e-5


def advantages(rollout: Rollout, discount: float, gae_lambda: float) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016), [T, B]; 0 for steps that were not taken.

    The value after termination is 0; an episode that was cut off bootstraps from the value of its last state.
    """
    result = torch.zeros_like(rollout.rewards)
    running = torch.zeros_like(rollout.rewards[0])
    for t in reversed(range(len(rollout.rewards))):
        goes_on = (~rollout.terminated[t]).to(running.dtype)
        error = rollout.rewards[t] + discount * goes_on * rollout.values[t + 1] - rollout.values[t]
        same_episode = (~rollout.ended[t]).to(running.dtype)
        running = torch.where(rollout.active[t], error + discount * gae_lambda * same_episode * running, 0.0)
        result[t] = running
    return result


def group_normalised(values: Tensor, active: Tensor) -> Tensor:
    """Zero mean and unit deviation over the active steps of the episodes of one graph; 0 elsewhere."""
    chosen = values[active]
    if len(chosen) < 2:
        return torch.zeros_like(values)
    return torch.where(active, (values - chosen.mean()) / (chosen.std() + 1e-4), 0.0)


class Batch:
    """The steps of several rollouts in one flat list."""

    def __init__(self, policy: Policy, rollouts: Sequence[Rollout], config: Config) -> None:
        gains = [advantages(each, config.discount, config.gae_lambda) for each in rollouts]
        pairs = list(zip(rollouts, gains, strict=True))
        self._policy = policy
        self.states: list[Any] = []
        for each in rollouts:
            for batch, active in zip(each.states, each.active, strict=True):
                self.states += policy.pick(batch, torch.nonzero(active)[:, 0].tolist())
        self.actions = torch.cat([each.actions[each.active] for each in rollouts])
        self.log_probs = torch.cat([each.log_probs[each.active] for each in rollouts])
        self.returns = torch.cat([(gain + each.values[:-1])[each.active] for each, gain in pairs])
        self.gains = torch.cat([group_normalised(gain, each.active)[each.active] for each, gain in pairs])

    def __len__(self) -> int:
        return len(self.states)

    def collate(self, rows: Sequence[int]) -> Any:
        """Collate the states of some rows into one batch."""
        return self._policy.collate([self.states[row] for row in rows])


def minibatches(sizes: Sequence[int], config: Config, generator: torch.Generator) -> Iterator[list[int]]:
    """Split rows in random order into minibatches, limited by graph nodes and by states.

    Args:
        sizes: nodes of each state.
        config: minibatch_nodes and minibatch_states.
        generator: of the order.
    """
    rows: list[int] = []
    nodes = 0
    for row in torch.randperm(len(sizes), generator=generator).tolist():
        is_full = nodes + sizes[row] > config.minibatch_nodes or len(rows) >= config.minibatch_states
        if rows and is_full:
            yield rows
            rows, nodes = [], 0
        rows.append(row)
        nodes += sizes[row]
    if rows:
        yield rows


def update(
    policy: Policy,
    optimiser: torch.optim.Optimizer,
    rollouts: Sequence[Rollout],
    config: Config,
    generator: torch.Generator,
) -> dict[str, float]:
    """One update of policy and value.

    Args:
        policy: collected the rollouts, unchanged since.
        optimiser: over its parameters.
        rollouts: real or imagined.
        config: clip, epochs, weights.
        generator: of the order of minibatches.

    Returns:
        Mean losses by name, and the deviation of the first minibatch's ratio from 1.

    Raises:
        RuntimeError: the policy's log-probabilities of the actions differ from those at collection: masks,
            weights or states have changed.
    """
    batch = Batch(policy, rollouts, config)
    sizes = [policy.size(state) for state in batch.states]
    logs: list[dict[str, float]] = []
    first_ratio = 0.0
    for epoch in range(config.epochs):
        for rows in minibatches(sizes, config, generator):
            told = policy.evaluate(batch.collate(rows), batch.actions[rows])
            ratio = (told.log_prob - batch.log_probs[rows]).exp()
            if epoch == 0 and not logs:
                first_ratio = float((ratio.detach() - 1).abs().max())
                if first_ratio > RATIO_TOLERANCE:
                    raise RuntimeError(f"the first ratio is off by {first_ratio:.2e}")
            gains = batch.gains[rows]
            clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
            policy_loss = -torch.minimum(ratio * gains, clipped * gains).mean()
            value_loss = policy.value.loss(told.value_logits, batch.returns[rows]).mean()
            entropy = told.entropy.mean()
            loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
            norm = descend(policy, optimiser, loss, config.max_gradient)
            is_clipped = (ratio.detach() - 1).abs() > config.clip
            logs.append(
                {
                    "policy_loss": float(policy_loss.detach()),
                    "value_loss": float(value_loss.detach()),
                    "entropy": float(entropy.detach()),
                    "clipped": float(is_clipped.float().mean()),
                    "gradient_norm": norm,
                }
            )
    return {**mean_of(logs), "first_ratio_error": first_ratio, "num_states": float(len(batch))}


def descend(policy: Any, optimiser: torch.optim.Optimizer, loss: Tensor, max_gradient: float) -> float:
    """One optimiser step; returns the gradient norm before clipping."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(policy.parameters(), max_gradient)
    optimiser.step()
    return float(norm)


def mean_of(logs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each entry."""
    return {name: sum(log[name] for log in logs) / len(logs) for name in logs[0]} if logs else {}
