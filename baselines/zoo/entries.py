"""Helpers for lists of models: factories of `transformers` models and of inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from baselines.zoo.transformer import PlainTensors, token_ids

Make = Callable[[], nn.Module]
MakeInputs = Callable[[int], tuple[Any, ...]]

CLASSES = 1000


def image(size: int = 224) -> MakeInputs:
    """Square images of three channels."""
    return lambda batch: (torch.randn(batch, 3, size, size),)


def ids(vocabulary: int, length: int) -> MakeInputs:
    """Texts of the given number of tokens."""
    return lambda batch: (token_ids(vocabulary, batch, length),)


def classifier(model: str, config: str, **given: Any) -> Make:
    """An image classifier of `transformers`: images to logits."""

    def make() -> nn.Module:
        built = getattr(transformers, model)(getattr(transformers, config)(num_labels=CLASSES, **given))
        return PlainTensors(built, "pixel_values", ("logits",))

    return make


def text(model: str, config: str, field: str, options: dict[str, Any] | None = None, **given: Any) -> Make:
    """A text model of `transformers`: ids to a field of its result."""

    def make() -> nn.Module:
        built = getattr(transformers, model)(getattr(transformers, config)(**given))
        return PlainTensors(built, "input_ids", (field,), **(options or {}))

    return make
