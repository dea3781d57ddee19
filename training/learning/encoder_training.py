"""Pre-trains the encoder of the latent rows on random play.

From the embedding of a graph, linear heads predict which substitutions are applicable, at how many locations,
and how much they can save. Every observation carries these labels. Later the world model has to predict the
same quantities for the next graph, so the embedding contains what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.actions import Choices
from torchrlopt.agent.networks.encoder import mlp
from torchrlopt.agent.observation import Observation, collate
from torchrlopt.errors import OptionsError
from training.config import Config
from training.learning.ppo import descend, mean_of, minibatches
from training.networks.ragged import segment_max
from training.rollout import Rollout

ENCODER_EPOCHS = 6


class _Questions(nn.Module):
    """Heads that read the embedding: legality, number of locations, cost, best saving."""

    def __init__(self, width: int, num_substitutions: int, has_macros: bool) -> None:
        super().__init__()
        self.has_macros = has_macros
        self.mask = nn.Linear(width, num_substitutions)
        self.count = nn.Linear(width, num_substitutions)
        self.numbers = mlp(width, width, 2)

    def loss(self, seen: Observation, graphs: Tensor) -> Tensor:
        """Scalar loss; `graphs` [B, W]."""
        legal = Choices(seen, self.mask.out_features, self.has_macros).legal
        counts, asked = legal.num_locations, legal.mask[:, :-1].float()
        is_legal = F.binary_cross_entropy_with_logits(self.mask(graphs), asked, reduction="none").sum(-1)
        places = (self.count(graphs) - torch.log2(1.0 + counts)).square() * asked
        saving = -seen.column("candidate", "cost_delta").unsqueeze(-1)
        most = segment_max(saving, seen.candidate_episode, seen.num_episodes).clamp(min=0).sqrt()
        cost = seen.column("global", "cost").unsqueeze(-1)
        numbers = (self.numbers(graphs) - torch.cat([cost, most], dim=1)).square().sum(-1)
        return (0.1 * is_legal + 0.1 * places.sum(-1) + 10.0 * numbers).mean()


def train_encoder(
    encoder: nn.Module,
    num_substitutions: int,
    rollouts: Sequence[Rollout],
    config: Config,
    generator: torch.Generator,
) -> dict[str, float]:
    """Train an encoder in place on random play, and freeze it.

    Args:
        encoder: one of `training.networks.encoders.ENCODERS`.
        num_substitutions: S; 2 S with macros.
        rollouts: random play whose states are observations.
        config: minibatch sizes, seed, macros.
        generator: of the order of minibatches.

    Returns:
        Mean losses of the first and the last epoch.

    Raises:
        OptionsError: random play collected nothing.
    """
    states: list[Observation] = []
    for rollout in rollouts:
        for batch, active in zip(rollout.states, rollout.active, strict=True):
            states += [batch.episode(row) for row in torch.nonzero(active)[:, 0].tolist()]
    if not states:
        raise OptionsError("nothing can be done in the graph, so nothing can be learnt", got=config.graph)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        questions = _Questions(int(encoder.width), num_substitutions, config.macros)
    both = nn.ModuleList([encoder, questions])
    encoder.requires_grad_(True)
    optimiser = torch.optim.Adam(both.parameters(), 2e-3)
    epochs = []
    for _ in range(ENCODER_EPOCHS):
        logs = []
        for rows in minibatches([len(state.ops) for state in states], config, generator):
            seen = collate([states[row] for row in rows])
            loss = questions.loss(seen, encoder(seen)[1])
            descend(both, optimiser, loss, 5.0)
            logs.append({"loss": float(loss.detach())})
        epochs.append(mean_of(logs)["loss"])
    encoder.requires_grad_(False)
    return {"first_loss": epochs[0], "last_loss": epochs[-1]}
