"""Search distillation: sample many episodes of each graph and imitate the best one.

The policy learns to do at once what sampling found by luck (expert iteration). The value learns the remaining
gain from all episodes. What the best episode did after its last gain is not imitated: there the policy learns
to stop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from training.config import Config
from training.learning.lessons import Lesson, lesson_batches
from training.learning.ppo import descend, mean_of
from training.networks.candidate_controller import CandidateController
from training.rollout import Rollout

MIN_GAIN = 1e-6
STEP_PRICE = 1e-5  # tie-break: of two episodes with nearly the same gain, prefer the shorter one


def lessons_of(rollout: Rollout) -> list[Lesson[int]]:
    """Lessons from the episodes of one graph: values from all of them, actions from the best one only.

    Targets are actions to imitate, -1 for none.
    """
    steps, count = rollout.rewards.shape
    to_go = rollout.rewards.flip(0).cumsum(0).flip(0)
    lengths = (rollout.active & (to_go > MIN_GAIN)).sum(0)
    best = int((rollout.returns - STEP_PRICE * lengths).argmax())
    active = rollout.active.clone()
    is_better = rollout.returns[best] > rollout.returns.mean() + MIN_GAIN
    lessons = []
    for t in range(steps):
        for b in range(count):
            if not active[t, b]:
                continue
            state = rollout.states[t].episode(b)
            value = float(to_go[t, b])
            action = -1
            if b == best and is_better:
                action = int(rollout.actions[t, b]) if value > MIN_GAIN else int(state.counts[0])
            lessons.append(Lesson(state, action, value))
            if b == best and value <= MIN_GAIN:
                # Later steps of the best episode gain nothing: one lesson in stopping is enough.
                active[t + 1 :, b] = False
    return lessons


def update(
    controller: CandidateController,
    optimiser: torch.optim.Optimizer,
    rollouts: Sequence[Rollout],
    config: Config,
    generator: torch.Generator,
) -> dict[str, float]:
    """One update by imitation; see `training.learning.ppo.update` for the arguments.

    Returns:
        Mean losses by name.
    """
    lessons = [lesson for rollout in rollouts for lesson in lessons_of(rollout)]
    logs = []
    for chosen, states, values in lesson_batches(controller, lessons, config, generator):
        actions = torch.tensor([lesson.target for lesson in chosen])
        is_taught = actions >= 0
        told = controller.evaluate(states, torch.where(is_taught, actions, states.counts))
        value_loss = controller.value.loss(told.value_logits, values).mean()
        taught = int(is_taught.sum())
        imitation = -(told.log_prob * is_taught).sum() / max(1, taught)
        entropy = told.entropy.mean()
        loss = imitation + config.value_weight * value_loss - config.entropy_weight * entropy
        norm = descend(controller, optimiser, loss, config.max_gradient)
        logs.append(
            {
                "imitation_loss": float(imitation.detach()),
                "value_loss": float(value_loss.detach()),
                "entropy": float(entropy.detach()),
                "gradient_norm": norm,
                "taught": taught / len(chosen),
            }
        )
    return {**mean_of(logs), "num_states": float(len(lessons))}
