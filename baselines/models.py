"""The twenty models of the suite: `NAMES` lists them, `build` creates one.

`EXTENDED` lists further models, of `baselines.zoo.extended`, which are reported separately, and `HELD_OUT`
those of `baselines.zoo.held_out`, on which nothing is tuned. `GROUPS` has all, with `baselines.zoo.others`.

Weights are random and the same in every call and in every process, so that peers in different processes
compute the same function.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import nn

from baselines.zoo import (
    extended,
    held_out,
    inception,
    mobile,
    naive,
    nasnet,
    others,
    reparam,
    resnet,
    taso,
    transformer,
)
from baselines.zoo.entries import Make, MakeInputs, ids, image
from baselines.zoo.randomise import randomise


def _floats(*shape: int, axis: int = 0) -> MakeInputs:
    """Random numbers of this shape for one input; the batch multiplies one of its sizes."""
    return lambda batch: (torch.randn(*shape[:axis], batch * shape[axis], *shape[axis + 1 :]),)


_ENTRIES: dict[str, tuple[Make, MakeInputs]] = {
    "inception_v3": (inception.InceptionV3, image(299)),
    "resnet18": (resnet.resnet18, image()),
    "resnet50": (resnet.resnet50, image()),
    "squeezenet1_1": (mobile.SqueezeNet, image()),
    "bert_base": (transformer.bert_base, ids(30522, 128)),
    "resnext50_32x4d": (resnet.resnext50_32x4d, image()),
    "nasnet_a": (nasnet.nasnet_a, image()),
    "nasrnn": (taso.nasrnn, _floats(10, 1, 512, axis=1)),
    "vit_s16": (transformer.vit_s16, image()),
    "gpt2": (transformer.gpt2, ids(50257, 64)),
    "llama_gqa": (transformer.llama_gqa, ids(32000, 64)),
    "mobilenet_v3": (mobile.MobileNetV3, image()),
    "repvgg_a0": (reparam.repvgg_a0, image()),
    "mobileone_s0": (reparam.mobileone_s0, image()),
    "bert_lora": (transformer.bert_lora, ids(30522, 32)),
    "linear_attention": (naive.linear_attention, _floats(1, 1024, 256)),
    "moe_loop": (naive.moe_loop, _floats(1, 32, 256)),
    "heads_loop": (naive.heads_loop, _floats(1, 32, 384)),
    "ensemble_mlp": (naive.ensemble_mlp, _floats(32, 128)),
    # TASO's toy, not a BERT: only for comparison with its paper.
    "toy_bert": (taso.ToyBert, _floats(64, 1024)),
}

#: Names of the models, in the order of reports.
NAMES: tuple[str, ...] = tuple(_ENTRIES)
EXTENDED: tuple[str, ...] = extended.NAMES
HELD_OUT: tuple[str, ...] = held_out.NAMES
#: Groups of models, by the name that stands for the whole group.
GROUPS: dict[str, tuple[str, ...]] = {
    "suite": NAMES, "extended": EXTENDED, "held_out": HELD_OUT, "others": others.NAMES,
}  # fmt: skip


def samples(name: str, batch: int, count: int) -> list[tuple[Any, ...]]:
    """Random inputs of the same kind as those that `build` makes, but others.

    Args:
        name: See `build`.
        batch: See `build`.
        count: How many calls they are for.
    """
    _, make_inputs = _entry(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()) + 1)
        return [make_inputs(batch) for _ in range(count)]


def build(name: str, batch: int = 1) -> tuple[nn.Module, tuple[Any, ...]]:
    """Create a model of the suite and inputs for it, without changing the global random state.

    Args:
        name: One of the names in `GROUPS`.
        batch: Number of images, sequences or groups of rows in the inputs; the weights do not depend on it.

    Returns:
        The module, float32 and in eval mode, and the tuple of its positional arguments.

    Raises:
        ValueError: There is no such model, or the batch is not positive.
    """
    make, make_inputs = _entry(name)
    if batch < 1:
        raise ValueError(f"batch of {name}: expected at least 1, got {batch}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        model = make().eval()
        randomise(model, make_inputs(1))
        return model, make_inputs(batch)


def _entry(name: str) -> tuple[Make, MakeInputs]:
    known = _ENTRIES | extended.ENTRIES | held_out.ENTRIES | others.ENTRIES
    if name not in known:
        raise ValueError(f"no model named {name!r} in the suite; choose one of: {', '.join(NAMES)}")
    return known[name]
