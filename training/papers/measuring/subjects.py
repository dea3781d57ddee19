"""The graphs that rows measure: blocks of real architectures with realistic sizes."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping

import torch

from baselines.zoo.taso import ToyBert
from torchrlopt.machine.profiling import Source, trace
from training.graphs.curriculum import USUAL, Split, sample_graph
from training.papers.measuring.modules import module_of

_BLOCK, _STACK = 0.1, 0.4  # curriculum progress at which a graph is one block, or a stack of a few


@dataclasses.dataclass(frozen=True)
class Subject:
    """A graph of the curriculum with realistic sizes, which runs for milliseconds.

    Attributes:
        split: of the curriculum.
        key: in it.
        progress: of the curriculum.
    """

    split: Split
    key: int
    progress: float = _BLOCK

    def source(self) -> Source:
        """The graph traced as a model of PyTorch, with random weights."""
        sample = sample_graph(self.key, split=self.split, progress=self.progress, sizes=USUAL)
        (source,) = trace(*module_of(sample.graph, seed=self.key))
        return source


class Layers(Subject):
    """The first three layers of the dissertation's toy BERT, half as wide."""

    def source(self) -> Source:
        """See `Subject`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(b"toy_bert"))
            module = ToyBert(width=512, num_heads=8, num_layers=3).eval()
            (source,) = trace(module, (torch.randn(64, 512),))
        return source


#: Several blocks each, with thousands of possible rewrites.
STACKS: Mapping[str, Subject] = {
    "toy_bert_3_layers": Layers("train", 0),
    "gated_state_relations": Subject("test", 6, _STACK),
    "experts_attention": Subject("train", 8, _STACK),
    "darts_asymmetric_separable": Subject("test", 3, _STACK),
    "two_of_gated_experts": Subject("test", 19, _STACK),
}
QUICK = "grouped_residual_15"  # too small a space to be meaningful; for quick runs
SUBJECTS: Mapping[str, Subject] = {**STACKS, QUICK: Subject("test", 15)}
