"""One row of the collection: how to make a model and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

Arguments = dict[str, Any]
MakeArguments = Callable[[int], Arguments]

#: Of the small text models. Ids below this one mean padding, begin and end.
VOCABULARY = 99
FIRST_WORD = 3


@dataclass(frozen=True)
class Architecture:
    """How to make a model and its arguments.

    Attributes:
        family: what kind of model it is.
        make: makes it; weights are as its authors initialise them.
        arguments: makes arguments by name for a batch of the given size.
        caches: the kinds of cache that `generate()` is called with; none where it generates nothing.
    """

    family: str
    make: Callable[[], nn.Module]
    arguments: MakeArguments
    caches: tuple[str, ...] = ()

    def prompt(self, batch: int) -> Arguments:
        """Arguments of `generate()`: those of the decoder are its own."""
        made = self.arguments(batch)
        return {name: value for name, value in made.items() if not name.startswith("decoder_")}


def of_transformers(
    family: str,
    model: str,
    config: str,
    arguments: MakeArguments,
    caches: tuple[str, ...] = (),
    **sizes: Any,
) -> Architecture:
    """An architecture of the `transformers` package.

    Args:
        family: what kind of model it is.
        model: name of its class.
        config: name of the class of its configuration.
        arguments: as in `Architecture`.
        caches: as in `Architecture`.
        **sizes: of the configuration.
    """

    def make() -> nn.Module:
        return getattr(transformers, model)(getattr(transformers, config)(**sizes))

    return Architecture(family, make, arguments, caches)


def words(batch: int, length: int = 12, vocabulary: int = VOCABULARY) -> Tensor:
    """Random ids, int64 [B, T], without those that have a meaning of their own."""
    return torch.randint(FIRST_WORD, vocabulary, (batch, length))


def text(batch: int) -> Arguments:
    """Ids with a mask; the first sequence is padded on the right, as for an encoder."""
    ids = words(batch)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def prompt(batch: int) -> Arguments:
    """Ids with a mask; the first sequence is padded on the left, as for a decoder."""
    ids = words(batch, 9)
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def plain(batch: int) -> Arguments:
    """Ids without a mask."""
    return {"input_ids": words(batch)}


def to_text(batch: int) -> Arguments:
    """A text, and the beginning of what a decoder makes of it."""
    return text(batch) | {"decoder_input_ids": words(batch, 7)}


def image(size: int, channels: int = 3) -> MakeArguments:
    """Makes images by the name that `transformers` gives them."""
    return lambda batch: {"pixel_values": torch.randn(batch, channels, size, size)}


def tensors(**shapes: tuple[int, ...]) -> MakeArguments:
    """Makes random tensors by name; the batch comes before the shapes."""
    return lambda batch: {name: torch.randn(batch, *shape) for name, shape in shapes.items()}


def joined(*parts: MakeArguments) -> MakeArguments:
    """Makes the arguments of all parts."""

    def make(batch: int) -> Arguments:
        merged: Arguments = {}
        for part in parts:
            merged |= part(batch)
        return merged

    return make


Table = Mapping[str, Architecture]
