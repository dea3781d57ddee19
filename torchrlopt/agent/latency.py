"""A learned model of measured latency: the cost model, corrected from measurements of whole graphs.

The cost model adds up prices of operators. On a device that nobody has profiled, some kinds of operators are
dearer there than it thinks, others cheaper. One factor for each kind is fitted to measured times of graphs;
with no measurement the factors are 1. Those of an agent, from the device that it was trained for, choose
among the last candidates of its search. Those that come with the package say which plans to measure.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.errors import AgentError
from torchrlopt.machine.cost import MachineProfile

_WITH_BIAS = 3  # operands of a fused product; one more is added to the result
_PENALTY = 1e-4  # on squared logarithms of factors, against the common one
_ITERATIONS = 200

Parts = dict[str, float]

THREADS = 1  # of the kernels that the shipped factors come from, and of the prices that they are for
SHIPPED = Path(__file__).parent / "shipped" / "latency.json"


def shipped(profile: MachineProfile) -> LatencyModel | None:
    """The factors that come with the package, on the prices of `cost_model(..., threads=THREADS)`.

    Args:
        profile: what is known of the machine.

    Returns:
        None where the machine's own prices are known, and for what was not measured: other executors, GPUs.
    """
    is_typical = not profile.prices and profile.probe is None
    return _shipped().get(profile.executor) if is_typical and profile.device_type == "cpu" else None


@functools.cache
def _shipped() -> dict[str, LatencyModel]:
    given = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return {name: LatencyModel.from_dict(each) for name, each in given["executors"].items()}


def parts_of(graph: _C.Graph, cost: _C.CostModel) -> Parts:
    """Predicted microseconds of a run by kind of operator."""
    parts: Parts = {}
    for id_ in graph.topological_order():
        us = float(cost.node(graph, id_)["time_us"])
        if us > 0:
            kind = _kind_of(graph.node(id_))
            parts[kind] = parts.get(kind, 0.0) + us
    return parts


def _kind_of(node: Mapping[str, Any]) -> str:
    """The operator, with what its kernel does besides: an activation, the addition of another operand."""
    op = str(node["op"])
    if not op.startswith("Fused"):
        return op
    activation = str(node["attrs"].get("activation", ""))
    return f"{op} {activation}{'+' if len(node['inputs']) > _WITH_BIAS else ''}"


@dataclasses.dataclass(frozen=True)
class LatencyModel:
    """Factors on predicted times.

    Attributes:
        common: factor of every kind that was not measured.
        factors: by kind of operator.
    """

    common: float = 1.0
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def latency_us(self, parts: Parts) -> float:
        """Microseconds of a run of a graph, from `parts_of`."""
        return sum(us * self.factors.get(kind, self.common) for kind, us in parts.items())

    def as_dict(self) -> dict[str, Any]:
        """Numbers and strings only; `from_dict` is the inverse."""
        return {"common": self.common, "factors": dict(self.factors)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> LatencyModel:
        """The inverse of `as_dict`.

        Raises:
            AgentError: not what `as_dict` gives, or a factor is not a positive number.
        """
        try:
            common = float(given["common"])
            factors = {str(kind): float(factor) for kind, factor in given["factors"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise AgentError("a latency model is malformed", got=repr(error)) from error
        if not all(math.isfinite(each) and each > 0 for each in (common, *factors.values())):
            raise AgentError("a latency model is malformed", expected="positive factors", got=given)
        return cls(common, factors)

    @classmethod
    def fit(cls, graphs: Sequence[Parts], measured_us: Sequence[float]) -> LatencyModel:
        """Factors that explain measured times: least squares of logarithms, drawn to one common factor.

        Args:
            graphs: from `parts_of`.
            measured_us: median time of a run of each.
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
