"""The papers' graphs, the training graphs, and the two libraries under comparison."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baselines import graphs, models
from baselines.zoo.taso import ToyBert
from torchrlopt import _C
from torchrlopt.capture import job
from torchrlopt.substitutions import library_text, load_library
from torchrlopt.substitutions.load import subset_of
from training.papers.runner import Scale

#: Titles of the dissertation's graphs by model name in `baselines.models`, in the order of its table 4.1. Its
#: "BERT" is the example of TASO's release: no softmax, bias, norm or residual.
DISSERTATION: Mapping[str, str] = {
    "inception_v3": "InceptionV3",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "squeezenet1_1": "SqueezeNet1.1",
    "toy_bert": "BERT (TASO's toy)",
}
BERT, TINY, VIT = "toy_bert", "toy_bert_tiny", "vit_s16"
#: The others are from TASO's evaluation, or were added here.
GRAPHS: Mapping[str, str] = {
    **DISSERTATION,
    "bert_base": "BERT-base",
    VIT: "ViT-S/16",
    "resnext50_32x4d": "ResNeXt-50",
    "nasnet_a": "NasNet-A",
    "nasrnn": "NasRNN",
}
TITLES: Mapping[str, str] = {**GRAPHS, TINY: "two layers of the toy BERT"}
TRAINABLE = (TINY, *GRAPHS)

#: Shares of the papers' steps above which more graphs are included.
TWO, TRAINED_BERT, SMALL, TRAINED_ALL = 0.005, 0.02, 0.05, 0.1

OURS, TASO = "ours", "taso"
LIBRARIES = {OURS: "our library", TASO: "TASO's rules"}
RULES = Path(__file__).with_name("taso_rules.txt")
#: Our equivalents of the rules built into TASO's program, in addition to its file. Its fusion of a
#: convolution with a product is wrong and left out.
BUILT_IN = ("fuse_conv_relu", "fold_batchnorm_into_conv", "merge_enlarged_convs_into_concat")
#: Normal forms that add no new graphs, but that the prices of linear layers need.
NORMAL_FORMS = ("normalise_gemm", "normalise_gemm_bias", "normalise_gemm_bias_plain", "normalise_linear")


def graphs_at(share: float) -> tuple[str, ...]:
    """The graphs searched and measured at a share of the papers' steps."""
    if share < TWO:
        return (BERT,)
    if share < SMALL:
        return ("squeezenet1_1", BERT)
    return tuple(DISSERTATION if share < 1 else GRAPHS)


def trained_on(scale: Scale) -> tuple[str, ...]:
    """The graphs that rows are trained on: those named by the scale, or those of its share."""
    if scale.graphs:
        return scale.graphs
    if scale.share < TRAINED_BERT:
        return (TINY,)
    return (*DISSERTATION, VIT) if scale.share >= TRAINED_ALL else (BERT,)


def bert(scale: Scale) -> str:
    """The graph for experiments that the dissertation made only with its BERT; else the first one."""
    names = trained_on(scale)
    return BERT if BERT in names else names[0]


def module_of(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A model and the arguments of a call, with batch size 1."""
    if name != TINY:
        return models.build(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        return ToyBert(width=64, num_heads=4, num_layers=2).eval(), (torch.randn(16, 64),)


@functools.cache
def graph_of(name: str) -> _C.Graph:
    """Its inference graph before any substitution; captured once per process."""
    if name != TINY:
        return graphs.graph_of(name)
    try:
        return job.graph_of(*module_of(name))
    finally:
        torch._dynamo.reset()  # frees the model


@functools.cache
def library(name: str) -> _C.Library:
    """One of `LIBRARIES`.

    Raises:
        ValueError: the library is unknown.
    """
    if name == OURS:
        return load_library()
    if name != TASO:
        raise ValueError(f"no library {name!r}; one of: {', '.join(LIBRARIES)}")
    everything = _C.Library(library_text())
    wanted = (*BUILT_IN, *NORMAL_FORMS)
    ours = subset_of(everything, [each for each in everything.names if each.removesuffix("_no_b") in wanted])
    texts = [f"# family: {ours.family(each)}\n{ours.text(each)}\n" for each in ours.names]
    return _C.Library("".join(texts) + RULES.read_text(encoding="utf-8"))
