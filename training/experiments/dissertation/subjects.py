"""What the rows are trained on: the dissertation's graphs, and a tiny one for quick runs."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import torch
from torch import nn

from baselines.zoo.taso import ToyBert
from torchrlopt import _C
from torchrlopt.capture import job
from training.experiments import graphs_of_paper
from training.experiments.runs import Scale

TINY = "toy_bert_tiny"
#: The dissertation's "BERT", which it looks at most closely.
BERT = "toy_bert"
VIT = "vit_s16"
#: Shares of the training from which on the graphs of the dissertation are trained on, and all of them.
FROM_BERT, FROM_ALL = 0.02, 0.1
#: Graphs that rows may be trained on.
TRAINABLE = (TINY, *graphs_of_paper.GRAPHS)


def title_of(name: str) -> str:
    """Of a graph, in tables and figures."""
    return "two layers of the toy BERT" if name == TINY else graphs_of_paper.GRAPHS[name].title


def subjects(scale: Scale) -> tuple[str, ...]:
    """The graphs of a scale: those that it names, or those of its share."""
    if scale.graphs:
        return scale.graphs
    if scale.share < FROM_BERT:
        return (TINY,)
    return (*graphs_of_paper.DISSERTATION, VIT) if scale.share >= FROM_ALL else (BERT,)


def bert(scale: Scale) -> str:
    """The graph of experiments that the dissertation made with its BERT only, or the first one."""
    graphs = subjects(scale)
    return BERT if BERT in graphs else graphs[0]


def module_of(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A model and the arguments of a call; see `training.experiments.graphs_of_paper.module_of`."""
    if name != TINY:
        return graphs_of_paper.module_of(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        return ToyBert(width=64, num_heads=4, num_layers=2).eval(), (torch.randn(16, 64),)


@functools.cache
def graph_of(name: str) -> _C.Graph:
    """Its inference graph, before any substitution."""
    if name != TINY:
        return graphs_of_paper.graph_of(name)
    try:
        return job.graph_of(*module_of(name))
    finally:
        torch._dynamo.reset()  # lets go of the model
