"""A program: the C++ graph together with the ONNX model it was read from.

The graph knows operators, types and wiring. Everything else - attributes of opaque nodes, subgraphs, the
bytes of initializers - stays in the source model and is restored by name when the graph is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir

from torchrlopt import _C

__all__ = ["Program"]


@dataclass(frozen=True)
class Program:
    """A graph that crosses the boundary between Python and C++.

    Attributes:
        graph: the C++ graph; `dataclasses.replace(program, graph=...)` carries a rewritten one.
        source: the model that was read; never modified.
        opset: the model's version of the default domain, in which its own nodes stay.
        slots: for each ONNX node that became a typed operator, its input slots that are inputs of the
            operator; the others (a Reshape's shape) became attributes.
        outer: for each opaque node with subgraphs, the names of the outer values that the subgraphs read, in
            the order of its last inputs.
        static: names of the graph inputs whose values stay the same between calls.
    """

    graph: _C.Graph
    source: onnx_ir.Model
    opset: int
    slots: Mapping[str, tuple[int, ...]]
    outer: Mapping[str, tuple[str, ...]]
    static: frozenset[str]
