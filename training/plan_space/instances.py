"""Graphs by family: one block or two of the curriculum in the sizes that people run, and real models."""

from __future__ import annotations

from collections import Counter
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

Instance = tuple[str, str, _C.Graph]  # families, name, graph


def blocks(families: Sequence[str], graphs: int) -> Iterator[Instance]:
    """Graphs of distinct structures; those with two blocks count for both families.

    Args:
        families: of `FAMILIES`.
        graphs: so many of each at least; fewer where there are no more.
    """
    for split, of_split in _BY_SPLIT.items():
        wanted = set(families) & set(of_split)
        counts: Counter[str] = Counter()
        seen: set[tuple[str, ...]] = set()
        for number in range(_DRAWS * graphs):
            left = {name for name in wanted if counts[name] < graphs}
            if not left:
                break
            sample = sample_graph(Purpose.PLAN_SPACE, number, split=split, progress=_BLOCK, sizes=USUAL)
            if left & set(sample.families) and sample.structures not in seen:
                seen.add(sample.structures)
                own = list(dict.fromkeys(name for name in sample.families if name in wanted))
                counts.update(own)
                yield " ".join(own), f"{split}_{number}", sample.graph


def models(names: Sequence[str]) -> Iterator[Instance]:
    """The graphs of real models."""
    for name in names:
        yield MODELS, name, graph_of(name)
