"""A model with trained weights, and its task."""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Call = tuple[Tensor, ...]
#: Calls of models that come trained: half of them to calibrate with, half of them held out.
CALLS = 32
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

    @classmethod
    def halved(cls, model: nn.Module, calls: Sequence[Call], **task: Any) -> Trained:
        """One whose second half of the calls is held out."""
        half = len(calls) // 2
        return cls(model.eval(), calls[0], calls[1:half], calls[half:], **task)


def folder_of(package: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    return Path(spec.origin).parent


def reference(model: nn.Module, held_out: Sequence[Call]) -> Callable[[], list[np.ndarray]]:
    """A function that returns the model's own first outputs of some calls, for figures of agreement."""
    own = copy.deepcopy(model)  # as it is now, whatever becomes of the other

    @functools.cache
    def answer() -> list[np.ndarray]:
        with torch.no_grad():
            found = [own(*call) for call in held_out]
        return [(each[0] if isinstance(each, tuple) else each).numpy() for each in found]

    return answer


def accuracy(labels: np.ndarray) -> Callable[[Answers], float]:
    """A figure: the share of rows, of all calls, whose largest score is at the label."""
    return lambda answers: float(np.mean(np.concatenate([call[0] for call in answers]).argmax(-1) == labels))
