"""Prediction quality of a world model on real episodes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.rollout import Rollout
from training.world.mixture_model import LOG_SIGMA
from training.world.sequences import Sequences
from training.world.world_model import WorldModel


@torch.no_grad()
def model_scores(model: WorldModel, seen: Sequences, generator: torch.Generator) -> dict[str, float]:
    """Score a model's predictions of recorded episodes, given their actions.

    Returns:
        reward_pearson and mask_f1 of single steps from real states; unchanged_f1, the mask_f1 of the baseline
        that a step does not change what is legal; predicted_gain and real_gain, mean returns, predicted from
        the first state and the actions alone, and real; dream_gap, the relative difference of the two.
    """
    step_state = model.start(seen.features[:, 0], seen.legal((slice(None), 0)))
    rewards, hits, same = [], torch.zeros(3), torch.zeros(3)
    for t in range(seen.rewards.shape[1]):
        actions, taken, valid = seen.actions[:, t], seen.taken[:, t], seen.valid[:, t]
        after, told = model.step(step_state, actions, generator, 0.0, taken)
        rewards.append(torch.stack([told.reward, seen.rewards[:, t]])[:, valid])
        guess, truth = after.legal.mask[valid][:, :-1], seen.mask[valid, t + 1, :-1]
        hits += _counts(guess, truth)
        same += _counts(seen.mask[valid, t, :-1], truth)
        legal = seen.legal((slice(None), t + 1))
        step_state = model.follow(step_state, actions, taken, seen.features[:, t + 1], legal, generator)
    predicted, real = torch.cat(rewards, dim=1)
    both = [gains.mean().item() for gains in episode_gains(model, seen, generator)]
    spread = predicted.std() * real.std()
    covariance = ((predicted - predicted.mean()) * (real - real.mean())).sum() / max(1, len(real) - 1)
    return {
        "reward_pearson": float(covariance / spread) if spread > 0 else 0.0,
        "mask_f1": _f1(hits),
        "unchanged_f1": _f1(same),
        "predicted_gain": both[0],
        "real_gain": both[1],
        "dream_gap": abs(both[0] - both[1]) / max(1e-9, abs(both[1])),
    }


@torch.no_grad()
def episode_gains(
    model: WorldModel, seen: Sequences, generator: torch.Generator, temperature: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Returns of recorded episodes: predicted from the first state and the actions alone, and real.

    Args:
        model: of the world.
        seen: the episodes.
        generator: of the model's random draws.
        temperature: of the model.

    Returns:
        [B] each, of the same episodes in the same order.
    """
    state = model.start(seen.features[:, 0], seen.legal((slice(None), 0)))
    gains = torch.zeros(len(seen.rewards))
    for t in range(seen.rewards.shape[1]):
        state, foretold = model.step(state, seen.actions[:, t], generator, temperature)
        gains += torch.where(seen.valid[:, t], foretold.reward, 0.0)
    return gains, (seen.rewards * seen.valid).sum(1)


def _counts(guess: Tensor, truth: Tensor) -> Tensor:
    """Counts of true positives, false positives and false negatives."""
    return torch.stack([(guess & truth).sum(), (guess & ~truth).sum(), (~guess & truth).sum()])


def _f1(counts: Tensor) -> float:
    return float(2 * counts[0] / (2 * counts[0] + counts[1] + counts[2]).clamp(min=1))


def gaussian_loss(model: WorldModel, known: Sequences, seen: Sequences) -> float:
    """The baseline for a mixture: one Gaussian for the changes of all steps.

    Args:
        model: whose feature scale is used.
        known: episodes to which the Gaussian is fitted.
        seen: episodes that are scored.

    Returns:
        Negative log-likelihood of the changes of the standardised features, mean over steps and features, as
        in `training.world.mixture_model.MixtureModel.loss`.
    """
    fitted, told = (model.standard(part.features).diff(dim=1)[part.valid] for part in (known, seen))
    least = math.exp(LOG_SIGMA[0])
    normal = torch.distributions.Normal(fitted.mean(0), fitted.std(0).clamp(min=least))
    return -float(normal.log_prob(told).mean())


def first_returns(rollout: Rollout) -> Tensor:
    """[B], return of the first episode in each row of an imagined rollout."""
    ended_before = rollout.ended.long().cumsum(0) - rollout.ended.long()
    return (rollout.rewards * (ended_before == 0)).sum(0)
