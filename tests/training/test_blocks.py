"""Block families: training/graphs/blocks.py, unseen_blocks.py."""

from __future__ import annotations

import numpy as np
import pytest

from torchrlopt import _C, _tools
from torchrlopt.machine.cost import cost_model
from torchrlopt.substitutions import load_library
from training.graphs.blocks import HELD_OUT_FAMILIES, IMAGE_BLOCKS, SEQUENCE_BLOCKS
from training.graphs.curriculum import sample_graph
from training.graphs.sketch import Sketch
from training.graphs.unseen_blocks import UNSEEN_IMAGE_BLOCKS, UNSEEN_SEQUENCE_BLOCKS

LIBRARY = load_library()
SHAPES = {
    **dict.fromkeys(IMAGE_BLOCKS | UNSEEN_IMAGE_BLOCKS, (2, 8, 6, 6)),
    **dict.fromkeys(SEQUENCE_BLOCKS | UNSEEN_SEQUENCE_BLOCKS, (2, 6, 16)),
}
UNSEEN = UNSEEN_IMAGE_BLOCKS | UNSEEN_SEQUENCE_BLOCKS
BLOCKS = IMAGE_BLOCKS | SEQUENCE_BLOCKS | UNSEEN


def graph_of(name: str, seed: int) -> _C.Graph:
    sketch = Sketch()
    x = sketch.input(*SHAPES[name])
    y = BLOCKS[name](sketch, x, np.random.default_rng(seed))
    assert sketch.shape(y) == SHAPES[name], "so that any block can follow"
    return sketch.finish(y)


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_a_block_is_cheaper_and_the_same_after_greedy(name: str) -> None:
    cost, gains = cost_model("eager"), []
    for seed in range(4):
        graph = graph_of(name, seed)
        found = _C.search(graph, LIBRARY, cost, searcher="greedy", budget_ms=10_000)
        rewritten = _C.replay(graph, LIBRARY, found["steps"])
        rng = np.random.default_rng(seed)
        leaves = [graph.node(leaf) for leaf in graph.inputs]
        arrays = {leaf["name"]: 0.5 + rng.random(leaf["types"][0][1]) for leaf in leaves}
        expected, got = _tools.evaluate(graph, arrays)[0], _tools.evaluate(rewritten, arrays)[0]
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())
        gains.append(found["cost_after_us"] / found["cost_before_us"])
    assert min(gains) < 0.99, "something is to be planned"


def test_the_test_has_fifteen_families_and_none_of_training() -> None:
    samples = [sample_graph(key, split="test") for key in range(200)]
    families = {family for sample in samples for family in sample.families}
    assert families == set(UNSEEN) | HELD_OUT_FAMILIES
    assert len(families) == 15
    assert not families & ({*IMAGE_BLOCKS, *SEQUENCE_BLOCKS} - HELD_OUT_FAMILIES)
    trained = {each for key in range(200) for each in sample_graph(key).families}
    assert not trained & families
    assert len({structure for sample in samples for structure in sample.structures}) > 100
