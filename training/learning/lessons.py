"""Minibatches of single-state lessons, for imitation of any kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from torchrlopt.agent.observation import Observation
from training.config import Config
from training.learning.ppo import minibatches
from training.networks.candidate_controller import CandidateController

Target = TypeVar("Target")


@dataclasses.dataclass(frozen=True)
class Lesson(Generic[Target]):
    """A state and its training targets.

    Attributes:
        state: one episode.
        target: of the policy.
        value: remaining gain after this state, as a share of the first cost.
    """

    state: Observation
    target: Target
    value: float


def lesson_batches(
    controller: CandidateController,
    lessons: Sequence[Lesson[Target]],
    config: Config,
    generator: torch.Generator,
) -> Iterator[tuple[list[Lesson[Target]], Observation, Tensor]]:
    """`epochs` passes over the lessons; yields lessons, their states as one batch, and their values [B]."""
    sizes = [len(lesson.state.ops) for lesson in lessons]
    for _ in range(config.epochs):
        for rows in minibatches(sizes, config, generator):
            chosen = [lessons[row] for row in rows]
            values = torch.tensor([lesson.value for lesson in chosen], dtype=torch.float32)
            yield chosen, controller.collate([lesson.state for lesson in chosen]), values
