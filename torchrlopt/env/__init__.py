"""Rewriting environments: the Python layer on top of the core's `VecRewriteEnv`.

The training of this package and the agent's search step `VecRewriteEnv` directly: `observe` gives
observations of any size, without padding, and `REWARDS` defines the rewards. `RewriteEnv` and
`RewriteVectorEnv` are Gymnasium adapters for other libraries' learners (extra `train`): the same episodes and
rewards, with observations padded to a fixed size.

Shape letters: B episodes, N nodes, E edges, C candidates, M node references of candidates, S substitutions.
"""

from __future__ import annotations

import importlib
from typing import Any

from torchrlopt.env.observation import allocate, columns, observe
from torchrlopt.env.reward import OUTCOMES, REWARDS, Reward

_LAZY = {
    "RewriteEnv": "torchrlopt.env.gym_env",
    "RewriteVectorEnv": "torchrlopt.env.gym_vector_env",
    "Padding": "torchrlopt.env.gym_padding",
}

__all__ = [
    "OUTCOMES",
    "REWARDS",
    "Padding",
    "Reward",
    "RewriteEnv",
    "RewriteVectorEnv",
    "allocate",
    "columns",
    "observe",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
