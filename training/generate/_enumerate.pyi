"""Typed stub of the generator's inner loop; a test compares it with the built module."""

from collections.abc import Sequence
from typing import Any

from torchrlopt._C import CostModel, Graph, Library

def world_names() -> list[str]: ...
def world(name: str) -> dict[str, Any]: ...
def enumerate_pairs(
    world: str, depth: int, seed: int = 0, slice: int = 0, num_slices: int = 1
) -> dict[str, Any]: ...
def term_graph(
    world: str,
    ops: Sequence[Sequence[int]],
    outputs: Sequence[int],
    shapes: Sequence[Sequence[int]] = ...,
    statics: Sequence[bool] = ...,
    trial: int = 0,
) -> Graph: ...
def find_difference(before: Graph, after: Graph, seed: int = 0) -> str: ...
def derive(
    before: Graph,
    after: Graph,
    library: Library,
    max_steps: int = 1,
    max_graphs: int = 400,
    cost: CostModel | None = None,
) -> list[tuple[str, int]] | None: ...
