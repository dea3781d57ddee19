"""Building blocks of training in imagination: substitution embeddings, optimisers, imagined episodes."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.observation import Schema
from training.config import Config
from training.networks.candidate_controller import Policy
from training.networks.substitution_encoder import SubstitutionEncoder, SubstitutionGraphs
from training.random_keys import gumbel_of
from training.rollout import Rollout
from training.world.latent_controller import LatentController
from training.world.world_model import WorldModel
from training.world.world_state import WorldState

MODEL_LEARNING_RATE = 1e-3  # of the world model; that of the policy is `Config.learning_rate`


@torch.no_grad()
def rules_of(library: _C.Library, schema: Schema) -> Tensor:
    """Embeddings of all substitutions, [S, D], from random, untrained networks."""
    embedded: Tensor = SubstitutionEncoder(schema)(SubstitutionGraphs.of(library, schema))
    return embedded


def optimisers_of(
    controller: LatentController, config: Config
) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Optimisers of the world model and of the policy."""
    return (
        torch.optim.Adam(controller.model.parameters(), MODEL_LEARNING_RATE),
        torch.optim.Adam(controller.policy.parameters(), config.learning_rate),
    )


def imagine(
    model: WorldModel, policy: Policy, start: WorldState, config: Config, generator: torch.Generator
) -> Rollout:
    """Play a policy in a world model from B states, with the training settings of the configuration."""
    return model.imagine(
        start,
        policy,
        config.dream_horizon,
        gumbel_of(generator),
        generator,
        config.temperature_dream,
        config.doubt_penalty,
    )
