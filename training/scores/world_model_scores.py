"""How well a world model predicts what happened in real episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from torchrlopt import _C
from torchrlopt.agent.world.latent_controller import LatentChooser, LatentController
from torchrlopt.agent.world.sequences import Sequences
from torchrlopt.agent.world.world_model import WorldModel
from training.config import Config
from training.episodes.play import Key, play_group
from training.episodes.random_keys import Purpose, torch_seed
from training.learning.world_data import join, sequences


@torch.no_grad()
def model_scores(model: WorldModel, seen: Sequences, generator: torch.Generator) -> dict[str, float]:
    """How well a model predicts recorded episodes, given their actions.

    Returns:
        reward_pearson and mask_f1 of single steps from real states; predicted_gain and real_gain, mean sums
        of rewards, the prediction made from the first state and the actions alone; dream_gap, the relative
        difference of the two.
    """
    free = step_state = model.start(seen.features[:, 0], seen.legal((slice(None), 0)))
    rewards, gains, hits = [], [], torch.zeros(3)
    for t in range(seen.rewards.shape[1]):
        actions, taken, valid = seen.actions[:, t], seen.taken[:, t], seen.valid[:, t]
        after, told = model.step(step_state, actions, generator, 0.0, taken)
        rewards.append(torch.stack([told.reward, seen.rewards[:, t]])[:, valid])
        guess, truth = after.legal.mask[valid][:, :-1], seen.mask[valid, t + 1, :-1]
        hits += torch.stack([(guess & truth).sum(), (guess & ~truth).sum(), (~guess & truth).sum()])
        legal = seen.legal((slice(None), t + 1))
        step_state = model.follow(step_state, actions, taken, seen.features[:, t + 1], legal, generator)
        free, foretold = model.step(free, actions, generator, 0.0)
        gains.append(torch.where(valid, foretold.reward, 0.0))
    predicted, real = torch.cat(rewards, dim=1)
    both = torch.stack(gains).sum(0).mean().item(), (seen.rewards * seen.valid).sum(1).mean().item()
    spread = predicted.std() * real.std()
    covariance = ((predicted - predicted.mean()) * (real - real.mean())).sum() / max(1, len(real) - 1)
    return {
        "reward_pearson": float(covariance / spread) if spread > 0 else 0.0,
        "mask_f1": float(2 * hits[0] / (2 * hits[0] + hits[1] + hits[2]).clamp(min=1)),
        "predicted_gain": both[0],
        "real_gain": both[1],
        "dream_gap": abs(both[0] - both[1]) / max(1e-9, abs(both[1])),
    }


def held_out_scores(
    controller: LatentController,
    graphs: Sequence[_C.Graph],
    library: _C.Library,
    cost: _C.CostModel,
    config: Config,
) -> dict[str, float]:
    """`model_scores` of the controller's own episodes on other graphs than it was trained on.

    Args:
        controller: with its world model.
        graphs: each is played from its beginning, `config.rollouts` times.
        library: the one the controller was trained with.
        cost: prices.
        config: of the run.
    """
    controller.eval()
    from_start = dataclasses.replace(config, original_share=1.0)
    seen = []
    for number, graph in enumerate(graphs):
        chooser = LatentChooser(controller.encoder, controller.model, controller.policy)
        key = Key(config.seed, torch_seed(Purpose.WORLD_MODEL_TEST), number)
        rollout = play_group(chooser, library, cost, key, from_start, graph=graph)
        if rollout is not None:
            seen.append(sequences(chooser, rollout))
    generator = torch.Generator().manual_seed(torch_seed(Purpose.WORLD_MODEL_TEST, config.seed))
    return model_scores(controller.model, join(seen), generator)
