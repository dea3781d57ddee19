"""The twenty models of the suite: `NAMES` lists them, `build` creates one.

`EXTENDED` lists further models, of `baselines.zoo.extended`, which are reported separately, and `HELD_OUT`
those of `baselines.zoo.held_out`, on which nothing is tuned.

Weights are random and the same in every call and in every process, so that peers in different processes
compute the same function.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baselines.zoo import (
    extended,
    held_out,
    inception,
    mobile,
    naive,
    nasnet,
    reparam,
    resnet,
    taso,
    transformer,
)
from baselines.zoo.randomise import randomise


@dataclass(frozen=True)
class _Entry:
    """How to create one model and its inputs for a given batch size."""

    make: Callable[[], nn.Module]
    make_inputs: Callable[[int], Tensor]


def _image(size: int = 224) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, 3, size, size)


def _tokens(length: int, width: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, length, width)


def _ids(vocabulary: int, length: int) -> Callable[[int], Tensor]:
    return lambda batch: transformer.token_ids(vocabulary, batch, length)


_ENTRIES: dict[str, _Entry] = {
    "inception_v3": _Entry(inception.inception_v3, _image(299)),
    "resnet18": _Entry(resnet.resnet18, _image()),
    "resnet50": _Entry(resnet.resnet50, _image()),
    "squeezenet1_1": _Entry(mobile.squeezenet1_1, _image()),
    "bert_base": _Entry(transformer.bert_base, _ids(30522, 128)),
    "resnext50_32x4d": _Entry(resnet.resnext50_32x4d, _image()),
    "nasnet_a": _Entry(nasnet.nasnet_a, _image()),
    "nasrnn": _Entry(taso.nasrnn, lambda batch: torch.randn(10, batch, 512)),
    "vit_s16": _Entry(transformer.vit_s16, _image()),
    "gpt2": _Entry(transformer.gpt2, _ids(50257, 64)),
    "llama_gqa": _Entry(transformer.llama_gqa, _ids(32000, 64)),
    "mobilenet_v3": _Entry(mobile.mobilenet_v3, _image()),
    "repvgg_a0": _Entry(reparam.repvgg_a0, _image()),
    "mobileone_s0": _Entry(reparam.mobileone_s0, _image()),
    "bert_lora": _Entry(transformer.bert_lora, _ids(30522, 32)),
    "linear_attention": _Entry(naive.linear_attention, _tokens(1024, 256)),
    "moe_loop": _Entry(naive.moe_loop, _tokens(32, 256)),
    "heads_loop": _Entry(naive.heads_loop, _tokens(32, 384)),
    "ensemble_mlp": _Entry(naive.ensemble_mlp, lambda batch: torch.randn(32 * batch, 128)),
    # TASO's toy, not a BERT: only for comparison with its paper.
    "toy_bert": _Entry(taso.toy_bert, lambda batch: torch.randn(64 * batch, 1024)),
}

#: Names of the models, in the order of reports.
NAMES: tuple[str, ...] = tuple(_ENTRIES)
EXTENDED: tuple[str, ...] = extended.NAMES
HELD_OUT: tuple[str, ...] = held_out.NAMES
#: Further groups of models, by the name that stands for the whole group.
GROUPS: dict[str, tuple[str, ...]] = {"extended": EXTENDED, "held_out": HELD_OUT}


def build(name: str, batch: int = 1) -> tuple[nn.Module, tuple[Any, ...]]:
    """Create a model of the suite and inputs for it, without changing the global random state.

    Args:
        name: One of `NAMES`, of `EXTENDED` or of `HELD_OUT`.
        batch: Number of images, sequences or groups of rows in the inputs; the weights do not depend on it.

    Returns:
        The module, float32 and in eval mode, and the tuple of its positional arguments.

    Raises:
        ValueError: There is no such model, or the batch is not positive.
    """
    others = extended.ENTRIES | held_out.ENTRIES
    if name not in (*NAMES, *others):
        raise ValueError(f"no model named {name!r} in the suite; choose one of: {', '.join(NAMES)}")
    if batch < 1:
        raise ValueError(f"batch of {name}: expected at least 1, got {batch}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        if name in others:
            make, make_inputs = others[name]
        else:
            entry = _ENTRIES[name]
            make, make_inputs = entry.make, lambda batch: (entry.make_inputs(batch),)
        model = make().eval()
        randomise(model, make_inputs(1))
        return model, make_inputs(batch)
