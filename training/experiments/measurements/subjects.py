"""The graphs that the question is asked on: blocks of real architectures whose whole space can be measured.

A space is all graphs that substitutions lead to. These are graphs of one block, in sizes that people run, of
which a run takes milliseconds and the space has a hundred to `MOST_GRAPHS` graphs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torchrlopt import _C
from torchrlopt.machine.cost import cost_model
from torchrlopt.machine.profiling import Source, trace
from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
from training.graphs.curriculum import USUAL, Split, sample_graph
from training.latency.subjects import module_of

MOST_GRAPHS = 1_000
_SINGLE = 0.1  # progress of the curriculum at which a graph is one block


@dataclasses.dataclass(frozen=True)
class Subject:
    """A graph of the curriculum.

    Attributes:
        title: its family, in words.
        split: of the curriculum.
        key: in it.
        is_narrow: the whole library leads to too many graphs; its space is that of `library`.
    """

    title: str
    split: Split
    key: int
    is_narrow: bool = False

    def source(self) -> Source:
        """The graph traced as a model of PyTorch, with random weights."""
        sample = sample_graph(self.key, split=self.split, progress=_SINGLE, sizes=USUAL)
        (source,) = trace(*module_of(sample.graph, seed=self.key))
        return source

    def library(self, graph: _C.Graph) -> _C.Library:
        """The substitutions that make its space: all of them, or those that some plan for the graph uses."""
        if not self.is_narrow:
            return load_library()
        used = {
            name
            for searcher in _SEARCHERS
            for name, _ in _C.search(
                graph,
                load_library(),
                cost_model(_EXECUTOR, threads=1),
                searcher=searcher,
                budget_ms=_NO_LIMIT_MS,
                budget_steps=_SEARCH_STEPS,
            )["steps"]
        }
        return subset_of(load_library(), [name for name in load_library().names if name in used])


_SEARCHERS = ("greedy", "taso", "beam", "restarts")
_EXECUTOR, _SEARCH_STEPS, _NO_LIMIT_MS = "eager", 2_000, 1e9

#: By name.
SUBJECTS: Mapping[str, Subject] = {
    f"{subject.title.replace(' ', '_')}_{subject.key}": subject
    for subject in (
        Subject("asymmetric convs", "test", 20),
        Subject("inception", "train", 36),
        Subject("ghost block", "test", 41),
        Subject("randwire stage", "test", 1),
        Subject("darts cell", "test", 76),
        Subject("reparametrised", "train", 75),
        Subject("overparametrised", "test", 25),
        Subject("skip concat", "test", 10, is_narrow=True),
        Subject("gated state", "test", 24, is_narrow=True),
        Subject("recurrent cell", "held_out", 24, is_narrow=True),
        Subject("grouped residual", "test", 15),
    )
}
QUICK = "grouped_residual_15"  # too small a space to ask about, for trying the program
