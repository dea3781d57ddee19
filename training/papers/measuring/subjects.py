"""The graphs that rows measure: blocks of real architectures with realistic sizes."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping

import torch

from baselines.zoo.taso import ToyBert
from torchrlopt import _C
from torchrlopt.machine.cost import cost_model
from torchrlopt.machine.profiling import Source, trace
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
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
        is_narrow: whether its space uses only the substitutions that some plan for the graph uses, because
            the whole library leads to too many graphs.
    """

    split: Split
    key: int
    progress: float = _BLOCK
    is_narrow: bool = False

    def source(self) -> Source:
        """The graph traced as a model of PyTorch, with random weights."""
        sample = sample_graph(self.key, split=self.split, progress=self.progress, sizes=USUAL)
        (source,) = trace(*module_of(sample.graph, seed=self.key))
        return source

    def library(self, graph: _C.Graph) -> _C.Library:
        """The substitutions that span its space."""
        if not self.is_narrow:
            return load_library()
        cost, limits = cost_model("eager", threads=1), {"budget_ms": 1e9, "budget_steps": 2_000}
        found = [
            _C.search(graph, load_library(), cost, searcher=searcher, **limits)["steps"]
            for searcher in ("greedy", "taso", "beam", "restarts")
        ]
        used = {name for steps in found for name, _ in steps}
        return subset_of(load_library(), [name for name in load_library().names if name in used])


class Layers(Subject):
    """The first three layers of the dissertation's toy BERT, half as wide."""

    def source(self) -> Source:
        """See `Subject`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(b"toy_bert"))
            module = ToyBert(width=512, num_heads=8, num_layers=3).eval()
            (source,) = trace(module, (torch.randn(64, 512),))
        return source


#: Blocks of real architectures whose space has a hundred to `MOST_GRAPHS` graphs, by name.
BLOCKS: Mapping[str, Subject] = {
    "asymmetric_convs_20": Subject("test", 20),
    "inception_36": Subject("train", 36),
    "ghost_block_41": Subject("test", 41),
    "randwire_stage_1": Subject("test", 1),
    "darts_cell_76": Subject("test", 76),
    "reparametrised_75": Subject("train", 75),
    "overparametrised_25": Subject("test", 25),
    "skip_concat_10": Subject("test", 10, is_narrow=True),
    "gated_state_24": Subject("test", 24, is_narrow=True),
    "recurrent_cell_24": Subject("held_out", 24, is_narrow=True),
}
#: Several blocks each, with thousands of possible rewrites.
STACKS: Mapping[str, Subject] = {
    "toy_bert_3_layers": Layers("train", 0),
    "gated_state_relations": Subject("test", 6, _STACK),
    "experts_attention": Subject("train", 8, _STACK),
    "darts_asymmetric_separable": Subject("test", 3, _STACK),
    "two_of_gated_experts": Subject("test", 19, _STACK),
}
QUICK = "grouped_residual_15"  # too small a space to be meaningful; for quick runs
SUBJECTS: Mapping[str, Subject] = {**BLOCKS, **STACKS, QUICK: Subject("test", 15)}
