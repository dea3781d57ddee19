"""The whole collection: `CASES` names the cases, `build` creates a model with weights that hide no errors."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from baselines.collection import senses, text, vision, written
from baselines.collection.architecture import Architecture, Arguments
from baselines.zoo.randomise import randomise

ARCHITECTURES: dict[str, Architecture] = {
    **text.ENCODERS,
    **text.DECODERS,
    **text.BOTH,
    **vision.TRANSFORMERS,
    **vision.CONVOLUTIONS,
    **senses.SOUND,
    **senses.MULTIMODAL,
    **written.WRITTEN,
}

#: Tokens generated per call of `generate()`: enough for a cache to grow after its sizes have become symbolic.
NEW_TOKENS = 6


@dataclass(frozen=True)
class Case:
    """One architecture and how it is called.

    Attributes:
        name: of the architecture.
        cache: the cache of `generate()`; empty for plain calls.
    """

    name: str
    cache: str = ""

    @property
    def label(self) -> str:
        """Name in commands and tables: `gpt2`, or `gpt2/static` for `generate()` with a static cache."""
        return f"{self.name}/{self.cache}" if self.cache else self.name

    @property
    def architecture(self) -> Architecture:
        """The architecture of the case."""
        return ARCHITECTURES[self.name]


CASES: dict[str, Case] = {
    case.label: case
    for name, architecture in ARCHITECTURES.items()
    for case in (Case(name), *(Case(name, cache) for cache in architecture.caches))
}


def build(case: Case) -> nn.Module:
    """The model of a case in eval mode; the same in every call and in every process.

    Linear layers, convolutions and embeddings are drawn so that values stay of order one: the narrow normal
    distributions used to initialise training would hide most of what a model computes.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(zlib.crc32(case.name.encode()))
        model = case.architecture.make().eval()
        for module in model.modules():
            _redraw(module)
        for parameter in model.parameters():
            if not parameter.any():  # class and position embeddings and some biases are initialised to zero
                parameter.normal_(std=0.1)
        randomise(model, case.architecture.arguments(2))
        return model


def _redraw(module: nn.Module) -> None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() < 2:
        return
    if isinstance(module, nn.Embedding):
        weight.normal_(std=0.5)
    elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        weight.normal_(std=weight[0].numel() ** -0.5)
    elif type(module).__name__ == "Conv1D":  # GPT-2's linear layer, with its weight transposed
        weight.normal_(std=weight.shape[0] ** -0.5)


def arguments(case: Case, batch: int, number: int) -> Arguments:
    """The arguments of the call with this number; the same every time."""
    make = case.architecture.prompt if case.cache else case.architecture.arguments
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        return make(batch)


def larger(given: Arguments) -> Arguments:
    """The same arguments with longer texts and audio and larger images: half of each is repeated."""
    return {name: _larger(value) if isinstance(value, Tensor) else value for name, value in given.items()}


def _larger(value: Tensor) -> Tensor:
    for axis in {2: (1,), 4: (2, 3)}.get(value.dim(), ()):
        half = value.narrow(axis, 0, value.shape[axis] // 2)
        value = torch.cat([value, half], axis)
    return value


def caller(case: Case, model: nn.Module, wrap: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """A function of the arguments that calls a model as its users do.

    Args:
        case: how to call it: directly or by `generate()`.
        model: the model.
        wrap: compiles it; for `generate()` the forward method is compiled, as in the documentation of
            `transformers`.
    """
    if not case.cache:
        return model if wrap is None else wrap(model)
    if wrap is not None:
        model.forward = wrap(model.forward)
    generate: Callable[..., Any] = model.generate  # type: ignore[assignment]  # to mypy a tensor or a module
    cache = {} if case.cache == "dynamic" else {"cache_implementation": case.cache}
    return partial(
        generate,
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        pad_token_id=0,
        **cache,
    )
