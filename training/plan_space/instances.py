"""Graphs by family: single blocks of the curriculum in the sizes that people run, and real models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baselines.graphs import graph_of
from torchrlopt import _C
from training.episodes.random_keys import Purpose
from training.graphs.blocks import HELD_OUT_FAMILIES, IMAGE_BLOCKS, SEQUENCE_BLOCKS
from training.graphs.curriculum import USUAL, Split, sample_graph
from training.graphs.unseen_blocks import UNSEEN_IMAGE_BLOCKS, UNSEEN_SEQUENCE_BLOCKS

MODELS = "models"  # the family of the real ones
_BLOCK = 0.25  # progress of the curriculum at which graphs have one block or two
_DRAWS = 200  # for each graph that is asked for, at most

_BY_SPLIT: dict[Split, tuple[str, ...]] = {
    "train": tuple(
        name for name in (*IMAGE_BLOCKS, *SEQUENCE_BLOCKS)
        if name not in HELD_OUT_FAMILIES and name != "fragment"
    ),
    "test": (*UNSEEN_IMAGE_BLOCKS, *UNSEEN_SEQUENCE_BLOCKS, *sorted(HELD_OUT_FAMILIES)),
}  # fmt: skip

FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(name for names in _BY_SPLIT.values() for name in names))


def blocks(family: str, graphs: int) -> Iterator[tuple[str, _C.Graph]]:
    """Graphs of distinct structures that have a block of a family, by name; fewer where there are no more.

    Args:
        family: one of `FAMILIES`.
        graphs: so many.
    """
    split = next(split for split, names in _BY_SPLIT.items() if family in names)
    seen: set[tuple[str, ...]] = set()
    for number in range(_DRAWS * graphs):
        sample = sample_graph(Purpose.PLAN_SPACE, number, split=split, progress=_BLOCK, sizes=USUAL)
        if family in sample.families and sample.structures not in seen:
            seen.add(sample.structures)
            yield f"{split}_{number}", sample.graph
        if len(seen) == graphs:
            return


def models(names: Sequence[str]) -> Iterator[tuple[str, _C.Graph]]:
    """The graphs of real models."""
    for name in names:
        yield name, graph_of(name)
