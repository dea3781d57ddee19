"""Says how to ask for lower precision, where the user has not and it would gain much."""

from __future__ import annotations

from torchrlopt import _C
from torchrlopt.compile.contestant import Contestant
from torchrlopt.executors.precision.rungs import bfloat16_speedup
from torchrlopt.machine.cost.model import COST_CLASSES
from torchrlopt.options import Options
from torchrlopt.plan.planning import profile_for

_WORTH_SUGGESTING = 1.3
"""Predicted gain for which the report says how to ask for lower precision."""


def suggestion(graph: _C.Graph, contestant: Contestant, options: Options) -> str | None:
    """Return how to ask for lower precision, where it would gain much; None elsewhere."""
    device = contestant.subject.device
    factor = bfloat16_speedup(device)
    if factor <= 1 or options.lowering.numerics == "strict" or device.type != "cpu":
        return None
    cost = profile_for(options, device).cost_model(contestant.subject.sizes)
    total = low = 0.0
    for at in graph.topological_order():
        node, us = graph.node(at), float(cost.node(graph, at)["time_us"])
        total += us
        is_contraction = COST_CLASSES.get(str(node["op"])) in ("Contraction", "Attention")
        low += us if is_contraction and node["types"][0][0] == "f32" else 0.0
    gain = total / (total - low + low / factor) if total else 1.0
    if gain < _WORTH_SUGGESTING:
        return None
    return f"bfloat16 is predicted {gain:.1f}x faster: max_error=1e-2 uses it as far as the error allows"
