"""Observations: flat arrays over all episodes, filled by the core without per-node Python."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrlopt import _C

Arrays = dict[str, NDArray[Any]]


@functools.cache
def columns(array: str) -> tuple[str, ...]:
    """Return the column names of "node", "edge", "global" or "candidate", in order; empty for others."""
    return tuple(name for each, name in _C.feature_columns() if each == array)


#: Rows, columns (None: a vector) and dtype of every array; "x+1" means one row more than x.
_LAYOUT: dict[str, tuple[str, str | None, type]] = {
    "node_offsets": ("episodes+1", None, np.int64),
    "edge_offsets": ("episodes+1", None, np.int64),
    "candidate_offsets": ("episodes+1", None, np.int64),
    "ops": ("nodes", None, np.int64),
    "nodes": ("nodes", "node", np.float32),
    "edge_index": ("edges", "2", np.int64),
    "edges": ("edges", "edge", np.float32),
    "globals": ("episodes", "global", np.float32),
    "substitutions": ("candidates", None, np.int64),
    "locations": ("candidates", None, np.int64),
    "candidates": ("candidates", "candidate", np.float32),
    "matched_offsets": ("candidates+1", None, np.int64),
    "matched": ("matched", None, np.int64),
}


def allocate(sizes: Mapping[str, int]) -> Arrays:
    """Allocate uninitialised arrays for an observation of these sizes (`VecRewriteEnv.sizes`).

    Returns:
        node_offsets, edge_offsets, candidate_offsets [B + 1]: rows of each episode; ops [N]: index in
        `_C.ops()`; nodes [N, columns("node")]; edge_index [2, E]: rows of nodes, producer and reader;
        edges [E, ...]; globals [B, ...]; substitutions, locations [C]: of the first member of a symmetry
        class; candidates [C, ...]; matched_offsets [C + 1] and matched [M]: rows of the nodes each candidate
        matches.
    """
    arrays: Arrays = {}
    for name, (rows, kind, dtype) in _LAYOUT.items():
        of, plus, _ = rows.partition("+")
        count = sizes[of] + bool(plus)
        shape = (count,) if kind is None else (2, count) if kind == "2" else (count, len(columns(kind)))
        arrays[name] = np.empty(shape, dtype)
    return arrays


def observe(env: _C.VecRewriteEnv, envs: Sequence[int] = ()) -> Arrays:
    """Return the arrays of `allocate`, filled.

    Args:
        env: the episodes.
        envs: those to observe, in this order; all if empty.
    """
    arrays = allocate(env.sizes(list(envs)))
    env.observe(arrays)
    return arrays
