"""A model with trained weights, and its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

Call = tuple[Tensor, ...]
Answers = Sequence[Sequence[np.ndarray]]


@dataclass(frozen=True)
class Trained:
    """What a model is for.

    Attributes:
        model: float32, in eval mode.
        inputs: of the calls that are timed, and checked.
        others: further calls of the same shapes, to calibrate with.
        held_out: calls of the same shapes that nothing was trained or calibrated with.
        figure: how good the outputs of the calls in `held_out` are, one list of arrays for each.
        unit: what the figure is.
    """

    model: nn.Module
    inputs: Call
    others: Sequence[Call]
    held_out: Sequence[Call]
    figure: Callable[[Answers], float]
    unit: str


def accuracy(labels: np.ndarray) -> Callable[[Answers], float]:
    """A figure: the share of rows, of all calls, whose largest score is at the label."""
    return lambda answers: float(np.mean(np.concatenate([call[0] for call in answers]).argmax(-1) == labels))
