"""Observations padded to a fixed size, as Gymnasium's spaces require."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from torchrlopt import _C
from torchrlopt.env.observation import Arrays, columns

_LIMIT = np.finfo(np.float32).max


@dataclasses.dataclass(frozen=True)
class Padding:
    """Maximum number of rows per episode in an observation; further rows are dropped.

    Attributes:
        nodes: maximum number of nodes, in topological order.
        edges: maximum number of edges, between nodes that are shown.
        candidates: maximum number of candidates that are shown and can be chosen.
        matched: maximum number of nodes that are shown of those that a candidate matches.
    """

    nodes: int = 2048
    edges: int = 4096
    candidates: int = 1024
    matched: int = 16

    def space(self) -> spaces.Dict:
        """Return the observation space of one episode; see `pad`."""

        def box(rows: int, array: str) -> spaces.Box:
            return spaces.Box(-_LIMIT, _LIMIT, (rows, len(columns(array))), np.float32)

        def index(shape: tuple[int, ...], end: int) -> spaces.Box:
            return spaces.Box(-1, end, shape, np.int64)

        return spaces.Dict(
            {
                "ops": index((self.nodes,), len(_C.ops())),
                "nodes": box(self.nodes, "node"),
                "edge_index": index((2, self.edges), self.nodes),
                "edges": box(self.edges, "edge"),
                "globals": spaces.Box(-_LIMIT, _LIMIT, (len(columns("global")),), np.float32),
                "substitutions": index((self.candidates,), np.iinfo(np.int32).max),
                "candidates": box(self.candidates, "candidate"),
                "matched": index((self.candidates, self.matched), self.nodes),
                "action_mask": spaces.MultiBinary(self.candidates + 1),
            }
        )

    def pad(self, arrays: Arrays, num_envs: int) -> Arrays:
        """Pad all episodes: return every array of `space` with a leading dimension B.

        Padding is -1 in indices and 0 in features. `action_mask` is 1 for legal actions; its last entry is
        stop.
        """
        sources = {"ops": "node", "nodes": "node", "edges": "edge", "substitutions": "candidate",
                   "candidates": "candidate"}  # fmt: skip
        result: Arrays = {}
        for name, space in self.space().items():
            fill = -1 if np.issubdtype(_dtype(space), np.int64) else 0
            result[name] = np.full((num_envs, *_shape(space)), fill, _dtype(space))
        result["globals"][:] = arrays["globals"]
        result["action_mask"][:, -1] = 1
        for env in range(num_envs):
            for name, kind in sources.items():
                begin, end = arrays[f"{kind}_offsets"][env : env + 2]
                rows = arrays[name][begin : min(end, begin + result[name].shape[1])]
                result[name][env, : len(rows)] = rows
            begin, end = arrays["edge_offsets"][env : env + 2]
            ends = arrays["edge_index"][:, begin : min(end, begin + self.edges)] - arrays["node_offsets"][env]
            shown = np.where((ends < self.nodes).all(axis=0), ends, -1)
            result["edge_index"][env, :, : ends.shape[1]] = shown
            begin, end = arrays["candidate_offsets"][env : env + 2]
            result["action_mask"][env, : min(end - begin, self.candidates)] = 1
            self._pad_matched(result["matched"][env], arrays, begin, end, arrays["node_offsets"][env])
        return result

    def _pad_matched(self, rows: NDArray[Any], arrays: Arrays, begin: int, end: int, first_node: int) -> None:
        """Write the matched nodes of an episode's candidates to rows that hold -1."""
        offsets = arrays["matched_offsets"][begin : min(end, begin + self.candidates) + 1]
        matched = arrays["matched"][offsets[0] : offsets[-1]] - first_node
        candidate = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        place = np.arange(len(matched)) - (offsets - offsets[0])[candidate]
        is_shown = (place < self.matched) & (matched < self.nodes)
        rows[candidate[is_shown], place[is_shown]] = matched[is_shown]


def _dtype(space: spaces.Space[Any]) -> np.dtype[Any]:
    assert space.dtype is not None
    return space.dtype


def _shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    assert space.shape is not None
    return space.shape


def to_core(actions: NDArray[Any], counts: NDArray[Any], padding: Padding) -> list[int]:
    """Convert to the core's actions: the last padded action is stop, and illegal ones stay illegal."""
    result = []
    for action, count in zip(actions.tolist(), counts.tolist(), strict=True):
        is_stop = action == padding.candidates
        result.append(count if is_stop else action if action < count else -1)
    return result
