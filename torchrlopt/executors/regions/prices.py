"""What a region saves and what its borders cost, in microseconds: small regions are not worth one.

The nodes are priced by the cost model, which knows what was measured on this machine. A border costs a
constant for each call of the runtime, and the bytes that cross it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import onnx_ir

_PASSES = 2
"""How often what crosses is read or written: it is looked at for numbers that are not finite, and copied."""

_UNKNOWN = 1  # a size that nobody knows


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices of one graph.

    Attributes:
        saved_us: by name of a node, what PyTorch takes for it more than the runtime.
        crossing_us: of one call of the runtime: turning arguments into feeds, waking its threads.
        bytes_per_us: at which memory is read.
        sizes: examples of symbolic sizes, by the expression that a shape has for them.
        typical_us: what a node saves that `saved_us` does not name.
    """

    saved_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
    crossing_us: float = 0.0
    bytes_per_us: float = 1e4
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    typical_us: float = 0.0

    def saving_us(self, nodes: Iterable[onnx_ir.Node]) -> float:
        """What these nodes take less in the runtime, borders aside."""
        return sum(self.saved_us.get(str(node.name), self.typical_us) for node in nodes)

    def border_us(self, values: Iterable[onnx_ir.Value]) -> float:
        """What it costs to call the runtime and to have these values cross."""
        return self.crossing_us + _PASSES * sum(map(self.num_bytes, values)) / self.bytes_per_us

    def num_bytes(self, value: onnx_ir.Value) -> float:
        """Size of a value, with symbols as in the example; of an unknown shape that of one element."""
        if value.dtype is None or value.shape is None:
            return 1.0
        return math.prod(self._size(dim) for dim in value.shape) * value.dtype.itemsize

    def _size(self, dim: int | onnx_ir.SymbolicDim) -> int:
        return dim if isinstance(dim, int) else self.sizes.get(str(dim.value), _UNKNOWN)
