"""What a region saves and what its borders cost, in microseconds: small regions do not pay.

Nodes are priced with the cost model, which uses measurements from this machine. A border costs a constant per
call of the runtime, plus the bytes that cross it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import onnx_ir

_PASSES = 2
"""How often crossing values are read or written: they are checked for non-finite numbers and copied."""

_UNKNOWN = 1  # for an unknown size


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices for one graph.

    Attributes:
        saved_us: by node name, the time that the runtime saves compared with PyTorch.
        crossing_us: overhead of one call of the runtime: converting arguments to feeds, waking its threads.
        bytes_per_us: memory read bandwidth.
        sizes: example values of symbolic sizes, by their expressions in shapes.
        typical_us: saving of a node that `saved_us` does not list.
    """

    saved_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
    crossing_us: float = 0.0
    bytes_per_us: float = 1e4
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    typical_us: float = 0.0

    def saving_us(self, nodes: Iterable[onnx_ir.Node]) -> float:
        """Time that these nodes save in the runtime, not counting borders."""
        return sum(self.saved_us.get(str(node.name), self.typical_us) for node in nodes)

    def border_us(self, values: Iterable[onnx_ir.Value]) -> float:
        """Cost of calling the runtime and passing these values across the border."""
        return self.crossing_us + _PASSES * sum(map(self.num_bytes, values)) / self.bytes_per_us

    def num_bytes(self, value: onnx_ir.Value) -> float:
        """Size of a value, with example values for symbols; 1 if its dtype or shape is unknown."""
        if value.dtype is None or value.shape is None:
            return 1.0
        return math.prod(self._size(dim) for dim in value.shape) * value.dtype.itemsize

    def _size(self, dim: int | onnx_ir.SymbolicDim) -> int:
        return dim if isinstance(dim, int) else self.sizes.get(str(dim.value), _UNKNOWN)
