"""Typed stub of the tools around the C++ core; a test compares it with the built module."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrlopt._C import CostModel, Graph, Library

def evaluate(
    graph: Graph, inputs: Mapping[str, NDArray[Any]], arithmetic: str = "float64"
) -> list[np.ndarray[Any, Any]]: ...
def verify(
    library: Library,
    name: str,
    bindings: int = 200,
    seeds: int = 2,
    seed: int = 0,
    max_attempts: int = 20000,
) -> dict[str, Any]: ...
def instances(library: Library, name: str, count: int, seed: int = 0) -> list[dict[str, Any]]: ...
def time_steps(
    graph: Graph, library: Library, cost: CostModel, num_steps: int, seed: int = 0
) -> dict[str, Any]: ...
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
def normalised_hash(graph: Graph) -> int: ...
def derive(
    before: Graph,
    after: Graph,
    library: Library,
    max_steps: int = 1,
    max_graphs: int = 400,
    cost: CostModel | None = None,
) -> list[tuple[str, int]] | None: ...
