"""The curriculum: graphs by key, from single fragments to stacks of blocks, and the held-out graphs.

A graph is held out if one of its families is (`HELD_OUT_FAMILIES`), or if the hash of one of its block
structures falls into the held-out tenth. Test graphs consist of separate families and of the held-out ones.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.random import Generator

from torchrlopt import _C
from training.graphs.blocks import HELD_OUT_FAMILIES, IMAGE_BLOCKS, SEQUENCE_BLOCKS, Block
from training.graphs.sketch import Sketch
from training.graphs.unseen_blocks import UNSEEN_IMAGE_BLOCKS, UNSEEN_SEQUENCE_BLOCKS
from training.random_keys import generator

Split = Literal["train", "held_out", "test"]
HELD_OUT_PART = 10  # one structure in ten


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Free parameters and their choices; a sampler draws one number in [0, 1) for each.

    Attributes:
        image: of graphs of image blocks.
        sequence: of graphs of sequence blocks.
    """

    image: Mapping[str, tuple[int, ...]]
    sequence: Mapping[str, tuple[int, ...]]


SMALL = Sizes(
    {"batch": (1, 2, 4), "size": (7, 8, 14, 16, 28), "width": (8, 16, 32, 48, 64)},
    {"batch": (1, 2, 4), "length": (8, 16, 32, 64, 128), "width": (32, 64, 96, 128, 256)},
)
"""For training on predicted costs, where step time grows with the size of the graph."""

USUAL = Sizes(
    {"batch": (1, 2, 8), "size": (7, 14, 28, 56), "width": (32, 64, 128, 256)},
    {"batch": (1, 2, 8), "length": (16, 64, 128, 256), "width": (128, 256, 512, 768)},
)
"""Sizes of real models, for measurements."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A graph of the curriculum.

    Attributes:
        graph: the graph to optimise.
        families: of its blocks, in order.
        parameters: values of the free parameters.
        structures: hashes of the blocks, ignoring sizes.
    """

    graph: _C.Graph
    families: tuple[str, ...]
    parameters: dict[str, int]
    structures: tuple[str, ...]


def structure_hash(graph: _C.Graph) -> str:
    """Hash of operators and wiring, ignoring sizes, names and attributes: sixteen hexadecimal digits."""
    order = graph.topological_order()
    rows = {node: i for i, node in enumerate(order)}
    text = []
    for node in order:
        entry = graph.node(node)
        inputs = [(rows[value[0]], value[1]) if value is not None else None for value in entry["inputs"]]
        text.append((entry["op"], inputs))
    return hashlib.sha256(repr(text).encode()).hexdigest()[:16]


def is_held_out(structure: str) -> bool:
    """Whether a block structure is held out."""
    return int(structure, 16) % HELD_OUT_PART == 0


def sample_graph(
    *key: int,
    progress: float = 1.0,
    split: Split = "train",
    unit: np.ndarray | None = None,
    sizes: Sizes = SMALL,
) -> Sample:
    """The graph of a key, the same in every process.

    Args:
        *key: any number of non-negative integers.
        progress: 0 gives single blocks, half of them fragments; 1 gives stacks of up to four.
        split: "train", "held_out" or "test".
        unit: [3], a sampler's numbers in [0, 1) for the free parameters; drawn from the key if None.
        sizes: choices of the free parameters.
    """
    for attempt in range(1000):
        rng = generator(*key, attempt)
        sample = _draw(rng, progress, split, unit, sizes)
        # A held-out graph has held-out blocks only; a training graph has none.
        if all(_belongs(f, s, split) for f, s in zip(sample.families, sample.structures, strict=True)):
            return sample
    raise RuntimeError(f"no graph for the key {key} in the split {split!r}")


def stacked_graph(*key: int, operators: int, repeats: int = 1, sizes: Sizes = USUAL) -> Sample:
    """Stack blocks of the test families until the graph is large enough.

    Args:
        *key: any number of non-negative integers.
        operators: minimum number of operators.
        repeats: number of consecutive copies of each block.
        sizes: choices of the free parameters.
    """
    rng = generator(*key)
    is_image = rng.random() < 0.5
    blocks, parameters = _blocks(is_image, "test"), _parameters(is_image, sizes, rng)
    names, families, structures = list(blocks), [], []
    sketch, value = _begin(is_image, parameters)
    while sketch.operators < operators:
        name, seed = names[int(rng.integers(len(names)))], int(rng.integers(2**32))
        families.append(name)
        structures.append(_structure(blocks[name], is_image, parameters, seed))
        for _ in range(repeats):
            value = blocks[name](sketch, value, np.random.default_rng(seed))
    return Sample(sketch.finish(value), tuple(families), parameters, tuple(structures))


def _belongs(family: str, structure: str, split: Split) -> bool:
    if split == "test":
        return True
    held_out = family in HELD_OUT_FAMILIES or is_held_out(structure)
    return held_out == (split == "held_out")


def _draw(rng: Generator, progress: float, split: Split, unit: np.ndarray | None, sizes: Sizes) -> Sample:
    is_image = rng.random() < 0.5
    blocks, parameters = _blocks(is_image, split), _parameters(is_image, sizes, rng, unit)
    names = list(blocks)
    depth = 1 + int(rng.random() * (1 + 3 * progress)) if progress > 0.2 else 1
    families, structures = [], []
    sketch, value = _begin(is_image, parameters)
    for _ in range(depth):
        is_fragment = split == "train" and rng.random() < 0.5 * (1 - progress)
        name = "fragment" if is_fragment else names[int(rng.integers(len(names)))]
        seed = int(rng.integers(2**32))
        families.append(name)
        structures.append(_structure(blocks[name], is_image, parameters, seed))
        value = blocks[name](sketch, value, np.random.default_rng(seed))
    parameters = {**parameters, "depth": depth}
    return Sample(sketch.finish(value), tuple(families), parameters, tuple(structures))


def _blocks(is_image: bool, split: Split) -> dict[str, Block]:
    """The block families of a split."""
    seen = IMAGE_BLOCKS if is_image else SEQUENCE_BLOCKS
    if split == "train":
        return {name: block for name, block in seen.items() if name not in HELD_OUT_FAMILIES}
    held_out = {name: block for name, block in seen.items() if name in HELD_OUT_FAMILIES}
    unseen = UNSEEN_IMAGE_BLOCKS if is_image else UNSEEN_SEQUENCE_BLOCKS
    return held_out if split == "held_out" else held_out | unseen


def _parameters(
    is_image: bool, sizes: Sizes, rng: Generator, unit: np.ndarray | None = None
) -> dict[str, int]:
    choices = sizes.image if is_image else sizes.sequence
    numbers = rng.random(len(choices)) if unit is None else unit
    return {
        name: options[int(number * len(options))]
        for (name, options), number in zip(choices.items(), numbers, strict=True)
    }


def _begin(is_image: bool, parameters: dict[str, int]) -> tuple[Sketch, tuple[int, int]]:
    sketch = Sketch()
    if is_image:
        size = parameters["size"]
        return sketch, sketch.input(parameters["batch"], parameters["width"], size, size)
    return sketch, sketch.input(parameters["batch"], parameters["length"], parameters["width"])


def _structure(block: Block, is_image: bool, parameters: dict[str, int], seed: int) -> str:
    """Structure hash of a single block."""
    sketch, value = _begin(is_image, parameters)
    return structure_hash(sketch.finish(block(sketch, value, np.random.default_rng(seed))))


def manifest(seed: int) -> dict[str, object]:
    """Description of the training graphs for a checkpoint."""
    families = sorted({*IMAGE_BLOCKS, *SEQUENCE_BLOCKS} - HELD_OUT_FAMILIES)
    return {
        "seed": seed,
        "families": families,
        "held_out_families": sorted(HELD_OUT_FAMILIES),
        "held_out_structures": f"structure_hash % {HELD_OUT_PART} == 0",
    }
