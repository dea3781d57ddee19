"""A learned latency model: the cost model, calibrated on a few measurements of whole graphs.

The cost model adds up prices of operators. On an unprofiled device it underestimates some kinds of operators
and overestimates others. One factor per kind is fitted to measured times of a few graphs; without
measurements the factors are 1. The model chooses among the final candidates of a search.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.errors import AgentError
from torchrlopt.machine.cost import COST_CLASSES

#: Operators that have their own factor, because they take most of the time; others share by cost class.
_APART = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Linear", "Attention")
_PENALTY = 1e-4  # on squared log factors relative to the common one
_ITERATIONS = 200

Parts = dict[str, float]


def parts_of(graph: _C.Graph, cost: _C.CostModel) -> Parts:
    """Return the predicted microseconds of a run by kind of operator."""
    parts: Parts = {}
    for id_ in graph.topological_order():
        op = str(graph.node(id_)["op"])
        kind = op if op in _APART else COST_CLASSES[op]
        us = float(cost.node(graph, id_)["time_us"])
        if us > 0:
            parts[kind] = parts.get(kind, 0.0) + us
    return parts


@dataclasses.dataclass(frozen=True)
class LatencyModel:
    """Factors on predicted times.

    Attributes:
        common: factor of kinds that were not measured.
        factors: factors by kind of operator.
    """

    common: float = 1.0
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def latency_us(self, parts: Parts) -> float:
        """Return the predicted microseconds of a run, from `parts_of`."""
        return sum(us * self.factors.get(kind, self.common) for kind, us in parts.items())

    def as_dict(self) -> dict[str, Any]:
        """Return numbers and strings only; `from_dict` is the inverse."""
        return {"common": self.common, "factors": dict(self.factors)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> LatencyModel:
        """Invert `as_dict`.

        Raises:
            AgentError: the data is malformed, or a factor is not a positive number.
        """
        try:
            common = float(given["common"])
            factors = {str(kind): float(factor) for kind, factor in given["factors"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise AgentError("a latency model is malformed", got=repr(error)) from error
        if not all(math.isfinite(each) and each > 0 for each in (common, *factors.values())):
            raise AgentError("a latency model is malformed", expected="positive factors", got=given)
        return cls(common, factors)

    @classmethod
    def fit(cls, graphs: Sequence[Parts], measured_us: Sequence[float]) -> LatencyModel:
        """Fit factors to measured times: log least squares, regularised towards a common factor.

        Args:
            graphs: results of `parts_of`.
            measured_us: median time of a run of each graph.
        """
        pairs = [(parts, us) for parts, us in zip(graphs, measured_us, strict=True) if parts and us > 0]
        if not pairs:
            return cls()
        kinds = sorted({kind for parts, _ in pairs for kind in parts})
        times = torch.tensor([[parts.get(kind, 0.0) for kind in kinds] for parts, _ in pairs]).double()
        target = torch.tensor([us for _, us in pairs]).double().log()
        common = (target - times.sum(1).log()).mean()
        offsets = torch.zeros(len(kinds), dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([offsets], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> torch.Tensor:
            optimiser.zero_grad()
            with torch.enable_grad():
                predicted = (times * (common + offsets).exp()).sum(1).log()
                value = (predicted - target).square().mean() + _PENALTY * offsets.square().sum()
                value.backward()
            return value

        optimiser.step(loss)
        factors = (common + offsets.detach()).exp()
        return cls(float(common.exp()), dict(zip(kinds, factors.tolist(), strict=True)))
