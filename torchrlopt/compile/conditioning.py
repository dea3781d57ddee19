"""How far does a float64 graph carry rounding errors? A run in float32 tells.

Float64 has no finer reference. But the errors of float32 go the same way through a graph, and are larger in
the ratio of the two units in the last place: where sums cancel, what is left of them in float64 is as many
times smaller than what is left in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torchrlopt.compile import differences
from torchrlopt.compile.float64 import float32_run

_RATIO = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps


class Carried(NamedTuple):
    """An estimate of the rounding errors in one float64 output; none where float32 cannot tell, to be strict.

    Attributes:
        rmse: root mean square error.
        largest: maximum error.
    """

    rmse: float = 0.0
    largest: float = 0.0


class Conditioning:
    """The rounding errors that one graph carries for one set of inputs; float32 runs when first asked.

    Args:
        aten: the graph.
        inputs: of the graph.
    """

    def __init__(self, aten: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._aten, self._inputs = aten, inputs
        self._narrow: Sequence[Any] | None = None

    def carried(self, index: int, reference: torch.Tensor) -> Carried:
        """The estimate for an output.

        Args:
            index: of the output.
            reference: the output in float64.
        """
        if self._narrow is None:
            try:
                self._narrow = float32_run(self._aten, self._inputs)
            except Exception:  # noqa: BLE001  # the user's operators may refuse float32 in any way
                self._narrow = ()
        narrow = self._narrow[index] if self._narrow else None
        if not isinstance(narrow, torch.Tensor) or narrow.shape != reference.shape:
            return Carried()
        found = differences.Errors()
        for wide, less in differences.pieces(reference, narrow):
            finite = wide.isfinite()
            found.add((less - wide)[finite].abs())
        if not math.isfinite(found.largest):
            return Carried()
        return Carried(found.rmse * _RATIO, found.largest * _RATIO)
