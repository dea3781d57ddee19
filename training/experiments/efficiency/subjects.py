"""The graphs that the question is asked on: several blocks each, with thousands of ways to rewrite them."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from baselines.zoo.taso import ToyBert
from torchrlopt.machine.profiling import Source, trace
from training.graphs.curriculum import USUAL, Split, sample_graph
from training.latency.subjects import module_of

_STACK = 0.4  # progress of the curriculum at which a graph is a stack of few blocks


@dataclasses.dataclass(frozen=True)
class Stack:
    """A graph of the curriculum, of a few blocks in sizes that people run.

    Attributes:
        split: of the curriculum.
        key: in it.
        progress: of the curriculum.
    """

    split: Split
    key: int
    progress: float = _STACK

    def model(self) -> tuple[nn.Module, tuple[Any, ...]]:
        """The graph as a model with random weights, and its inputs."""
        sample = sample_graph(self.key, split=self.split, progress=self.progress, sizes=USUAL)
        return module_of(sample.graph, seed=self.key)


@dataclasses.dataclass(frozen=True)
class Layers:
    """The first layers of the dissertation's toy BERT, half as wide.

    Attributes:
        width: of a token.
        heads: of the attention.
        layers: so many.
        tokens: of the input.
    """

    width: int = 512
    heads: int = 8
    layers: int = 3
    tokens: int = 64

    def model(self) -> tuple[nn.Module, tuple[Any, ...]]:
        """See `Stack`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(b"toy_bert"))
            return ToyBert(self.width, self.heads, self.layers).eval(), (
                torch.randn(self.tokens, self.width),
            )


#: By name.
SUBJECTS: Mapping[str, Stack | Layers] = {
    "toy_bert_3_layers": Layers(),
    "gated_state_relations": Stack("test", 6),
    "experts_attention": Stack("train", 8),
    "darts_asymmetric_separable": Stack("test", 3),
    "two_of_gated_experts": Stack("test", 19),
    "grouped_residual": Stack("test", 15, progress=0.1),
}
QUICK = "grouped_residual"  # too small a space to ask about, for trying the program


def source_of(name: str) -> Source:
    """One of `SUBJECTS`, traced as a model of PyTorch."""
    (source,) = trace(*SUBJECTS[name].model())
    return source
