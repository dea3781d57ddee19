"""Learning from searched episodes: the search's recommended policies, and the gain found from each state.

An episode that gains less than the network alone is used for its values only; so is a teacher's episode,
unless it gains more than every search of the same graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from training.config import Config
from training.episodes.searched_play import SearchedRollout
from training.learning.lessons import Lesson, lesson_batches
from training.learning.ppo import descend, mean_of
from training.networks.candidate_controller import CandidateController, join_actions, split_actions

TOLERANCE = 1e-6


def lessons_of(rollout: SearchedRollout) -> list[Lesson[Tensor | None]]:
    """Lessons from the episodes of one graph.

    Targets are policies [A] over the candidates of a state and stop; None for none.
    """
    steps, count = rollout.rewards.shape
    ends = torch.minimum(rollout.best[1:], rollout.found)
    lowest = ends.flip(0).cummin(0).values.flip(0)
    searched = rollout.returns[rollout.num_shown :]
    # A teacher's episode is imitated only if it is better than all that the search found.
    least = [float(searched.max()) + TOLERANCE] * rollout.num_shown
    least += [rollout.greedy_gain - TOLERANCE] * len(searched)
    lessons = []
    for t in range(steps):
        policies = split_actions(rollout.states[t], rollout.policies[t])
        for b in range(count):
            if not rollout.active[t, b]:
                continue
            policy = policies[b] if rollout.returns[b] >= least[b] else None
            state = rollout.states[t].episode(b)
            lessons.append(Lesson(state, policy, float(rollout.best[t, b] - lowest[t, b])))
    return lessons


def update(
    controller: CandidateController,
    optimiser: torch.optim.Optimizer,
    rollouts: Sequence[SearchedRollout],
    config: Config,
    generator: torch.Generator,
) -> dict[str, float]:
    """One update; see `training.learning.ppo.update` for the arguments.

    Returns:
        Mean losses by name.
    """
    lessons = [lesson for rollout in rollouts for lesson in lessons_of(rollout)]
    logs = []
    for chosen, states, values in lesson_batches(controller, lessons, config, generator):
        log_probs, _, value_logits = controller(states)
        wanted = join_actions(
            [
                torch.zeros(len(each.state.candidates) + 1) if each.target is None else each.target
                for each in chosen
            ]
        )
        taught = sum(each.target is not None for each in chosen)
        crossed = -(wanted * log_probs).sum() / max(1, taught)
        value_loss = controller.value.loss(value_logits, values).mean()
        loss = crossed + config.value_weight * value_loss
        norm = descend(controller, optimiser, loss, config.max_gradient)
        logs.append(
            {
                "policy_loss": float(crossed.detach()),
                "value_loss": float(value_loss.detach()),
                "gradient_norm": norm,
                "taught": taught / len(chosen),
            }
        )
    alone = torch.tensor([rollout.greedy_gain for rollout in rollouts])
    searched = torch.cat([rollout.returns[rollout.num_shown :] for rollout in rollouts])
    return {
        **mean_of(logs),
        "num_states": float(len(lessons)),
        "gain_without_search": float(alone.mean()),
        "gain_of_search": float(searched.mean()),
    }
