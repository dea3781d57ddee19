"""Helpers for lists of models: factories of `transformers` models and of inputs.

Models of `transformers` have its defaults (default attention, no key-value cache where they generate); a thin
wrapper returns plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

Make = Callable[[], nn.Module]
MakeInputs = Callable[[int], tuple[Any, ...]]

CLASSES = 1000
NO_CACHE = {"use_cache": False}


class PlainTensors(nn.Module):
    """Calls a `transformers` model with one input and returns the named fields of its result."""

    def __init__(self, model: nn.Module, argument: str, fields: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.model = model
        self.argument = argument
        self.fields = fields
        self.options = options

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        result = self.model(**{self.argument: x}, **self.options)
        tensors = tuple(getattr(result, field) for field in self.fields)
        return tensors[0] if len(tensors) == 1 else tensors


def image(size: int = 224) -> MakeInputs:
    """Square images of three channels."""
    return lambda batch: (torch.randn(batch, 3, size, size),)


def ids(vocabulary: int, length: int) -> MakeInputs:
    """Texts of the given number of tokens, int64 [B, T]."""
    return lambda batch: (torch.randint(vocabulary, (batch, length)),)


def plain(
    model: str,
    argument: str,
    fields: str | tuple[str, ...],
    options: dict[str, Any] | None = None,
    **given: Any,
) -> Make:
    """A model of `transformers`, configured as given: one input to fields of its result."""
    names = (fields,) if isinstance(fields, str) else fields

    def make() -> nn.Module:
        made = getattr(transformers, model)
        return PlainTensors(made(made.config_class(**given)), argument, names, **(options or {}))

    return make


def classifier(model: str, **given: Any) -> Make:
    """An image classifier of `transformers`: images to logits."""
    return plain(model, "pixel_values", "logits", num_labels=CLASSES, **given)


def text(
    model: str, fields: str | tuple[str, ...], options: dict[str, Any] | None = None, **given: Any
) -> Make:
    """A text model of `transformers`: ids to fields of its result."""
    return plain(model, "input_ids", fields, options, **given)
