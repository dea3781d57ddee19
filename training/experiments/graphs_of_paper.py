"""The graphs that the dissertation is evaluated on, and those of TASO beside them, as models of the suite.

Models, weights and inputs are those of `baselines.models`: an image or a sequence at a time, 224 pixels (299
of Inception), and for the toy BERT the 64 tokens of TASO's example.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from torch import nn

from baselines import graphs, models
from torchrlopt import _C


@dataclasses.dataclass(frozen=True)
class PaperGraph:
    """A graph of the paper.

    Attributes:
        name: of a model in `baselines.models`.
        title: in tables and figures.
        is_of_dissertation: one of its five; the others are of TASO's evaluation, or were added here.
    """

    name: str
    title: str
    is_of_dissertation: bool = True


_GRAPHS = (
    PaperGraph("inception_v3", "InceptionV3"),
    PaperGraph("resnet18", "ResNet-18"),
    PaperGraph("resnet50", "ResNet-50"),
    PaperGraph("squeezenet1_1", "SqueezeNet1.1"),
    # The dissertation's "BERT" is the example of TASO's release: no softmax, bias, norm or residual.
    PaperGraph("toy_bert", "BERT (TASO's toy)"),
    PaperGraph("bert_base", "BERT-base", False),
    PaperGraph("vit_s16", "ViT-S/16", False),
    PaperGraph("resnext50_32x4d", "ResNeXt-50", False),
    PaperGraph("nasnet_a", "NasNet-A", False),
    PaperGraph("nasrnn", "NasRNN", False),
)

#: By name.
GRAPHS: Mapping[str, PaperGraph] = {graph.name: graph for graph in _GRAPHS}
#: The five of the dissertation, in the order of its table 4.1.
DISSERTATION: tuple[str, ...] = tuple(graph.name for graph in _GRAPHS if graph.is_of_dissertation)
SMALL = 0.05
"""Share of the paper's steps below which only small graphs are made."""
_LEAST = 0.005  # below it there is one


@functools.cache
def graph_of(name: str) -> _C.Graph:
    """The inference graph of one of `GRAPHS`, before any substitution; captured once in a process.

    Raises:
        KeyError: there is no such graph.
    """
    return graphs.graph_of(GRAPHS[name].name)


def module_of(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model of one of `GRAPHS`, and the arguments of a call.

    Raises:
        KeyError: there is no such graph.
    """
    return models.build(GRAPHS[name].name)


def graphs_at(share: float) -> tuple[str, ...]:
    """Which graphs are made at a share of the paper's steps: one or two small ones, the paper's, or all."""
    if share < _LEAST:
        return ("toy_bert",)
    if share < SMALL:
        return ("squeezenet1_1", "toy_bert")
    return DISSERTATION if share < 1 else tuple(GRAPHS)
