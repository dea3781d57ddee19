"""One entry of the collection: how to create a model and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

Arguments = dict[str, Any]
MakeArguments = Callable[[int], Arguments]

#: Of the small text models. Ids below this one are padding, begin and end tokens.
VOCABULARY = 99
FIRST_WORD = 3
#: Settings that many configurations of `transformers` share.
WORDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = WORDS | LAYERS | {"max_position_embeddings": 64}
SEQ2SEQ = WORDS | {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """How to create a model and its arguments.

    Attributes:
        family: kind of model.
        make: creates it, with its authors' weight initialisation.
        arguments: creates keyword arguments for a given batch size.
        caches: the kinds of cache that `generate()` is called with; empty if it generates nothing.
    """

    family: str
    make: Callable[[], nn.Module]
    arguments: MakeArguments
    caches: tuple[str, ...] = ()

    def prompt(self, batch: int) -> Arguments:
        """Arguments of `generate()`, without those of the decoder, which it creates itself."""
        made = self.arguments(batch)
        return {name: value for name, value in made.items() if not name.startswith("decoder_")}


def of_transformers(
    family: str, model: str, arguments: MakeArguments, caches: tuple[str, ...] = (), **sizes: Any
) -> Architecture:
    """An architecture of the `transformers` package.

    Args:
        family: kind of model.
        model: name of its class.
        arguments: as in `Architecture`.
        caches: as in `Architecture`.
        **sizes: of the configuration.
    """

    def make() -> nn.Module:
        made = getattr(transformers, model)
        return made(made.config_class(**sizes))

    return Architecture(family, make, arguments, caches)


def words(batch: int, length: int = 12, vocabulary: int = VOCABULARY) -> Tensor:
    """Random ids, int64 [B, T], without special tokens."""
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
    """A text, and the beginning of the decoder's output."""
    return text(batch) | {"decoder_input_ids": words(batch, 7)}


def image(size: int, channels: int = 3) -> MakeArguments:
    """Creates images under the argument name used by `transformers`."""
    return lambda batch: {"pixel_values": torch.randn(batch, channels, size, size)}


def tensors(**shapes: tuple[int, ...]) -> MakeArguments:
    """Creates random tensors by name; the batch dimension comes before the shapes."""
    return lambda batch: {name: torch.randn(batch, *shape) for name, shape in shapes.items()}


def joined(*parts: MakeArguments) -> MakeArguments:
    """Creates the arguments of all parts."""

    def make(batch: int) -> Arguments:
        merged: Arguments = {}
        for part in parts:
            merged |= part(batch)
        return merged

    return make


Table = Mapping[str, Architecture]
