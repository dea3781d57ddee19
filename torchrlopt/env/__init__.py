"""Episodes of rewriting: the environment that agents learn in, over the core's `VecRewriteEnv`.

`RewriteEnv` and `RewriteVectorEnv` are Gymnasium environments (extra `train`); the rest needs NumPy only. In
the letters of shapes: B episodes, N nodes, E edges, C candidates, M node references of candidates, S
substitutions.
"""

from __future__ import annotations

import importlib
from typing import Any

from torchrlopt.env.observation import Observer, allocate, columns, schema_hash
from torchrlopt.env.reward import OUTCOMES, REWARDS, Reward, best_so_far, cost_difference

_LAZY = {
    "RewriteEnv": "torchrlopt.env.gym_env",
    "RewriteVectorEnv": "torchrlopt.env.gym_vector_env",
    "Padding": "torchrlopt.env.gym_padding",
}

__all__ = [
    "OUTCOMES",
    "REWARDS",
    "Observer",
    "Padding",
    "Reward",
    "RewriteEnv",
    "RewriteVectorEnv",
    "allocate",
    "best_so_far",
    "columns",
    "cost_difference",
    "schema_hash",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
