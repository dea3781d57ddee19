"""Typed stub of the tools around the C++ core; a test compares it with the built module."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrlopt._C import Graph, Library

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
