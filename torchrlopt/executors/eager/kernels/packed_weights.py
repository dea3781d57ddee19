"""Packs each weight once for the kernels of `csrc/kernels`, within the available memory.

A packed weight is kept in addition to the original: one for sums takes about as much memory, one in three
parts for the matrix unit 1.5 times as much, one for tiles three to five times as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import fx

from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.operators import PACK
from torchrlopt.executors.eager.kernels.selection import insert_after
from torchrlopt.executors.lowering.fx_values import shape_key, tensor_of
from torchrlopt.executors.weights.half_precision import available_bytes


class PackedWeights:
    """The packed weights of one graph.

    Like float32 copies of float16 weights, they take at most half of the available memory; the rest is left
    for computed values.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._made: dict[Any, fx.Node] = {}
        available = available_bytes()
        self._left = math.inf if available is None else available / 2
        # Weights packed by an earlier pass are not allocated yet either.
        for call in graph.find_nodes(op="call_function", target=PACK):
            weight, _, groups, method, _ = call.args
            self._left -= _num_bytes(weight, groups, method)
        self._counted: set[Any] = set()

    def first_that_fits(
        self,
        weight: fx.Node,
        bias: fx.Node | None,
        groups: int,
        methods: Sequence[int],
        is_transposed: bool = False,
    ) -> int | None:
        """Reserve memory for the first method whose packed weight fits.

        Args:
            weight: as for `indirect.pack`.
            bias: as for `indirect.pack`.
            groups: as for `indirect.pack`.
            methods: in order of preference.
            is_transposed: whether a product's weight is [in, out].

        Returns:
            The method; None if none fits.
        """
        for method in methods:
            key = (weight, bias, groups, method)
            needed = 0 if key in self._counted else _num_bytes(weight, groups, method, is_transposed)
            if needed <= self._left:
                self._left -= needed
                self._counted.add(key)
                return method
        return None

    def node(self, weight: fx.Node, bias: fx.Node | None, groups: int, method: int) -> fx.Node:
        """The `pack` call of a weight and a bias; created once, as soon as both are available.

        Its fake value is the weight's, as for oneDNN's packing: the packed tensor has no meaningful shape.
        """
        key = (weight, bias, groups, method)
        if key not in self._made:
            # Nodes compare by their position in the graph.
            last = weight if bias is None else max(weight, bias)
            call = insert_after(
                self._graph, last, PACK, (weight, bias, groups, method, weight.meta["val"].dtype)
            )
            call.meta["val"] = weight.meta["val"]
            self._made[key] = call
        return self._made[key]


def _num_bytes(weight: Any, groups: Any, method: Any, is_transposed: bool = False) -> int:
    shape, value = shape_key(weight), tensor_of(weight)
    assert shape is not None
    assert value is not None
    sizes = tuple(int(size) for size in (reversed(shape) if is_transposed else shape))
    return 4 * indirect.packed_size(sizes, groups, method, value.dtype)
