"""The agent's observations as tensors: ragged batches of graphs with offsets, and the column schema."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.env import columns
from torchrlopt.env import observe as observe_arrays
from torchrlopt.env.observation import Arrays
from torchrlopt.errors import AgentError
from torchrlopt.storage.checked_json import decoded

ARRAYS = ("node", "edge", "global", "candidate")  # arrays with features


@dataclasses.dataclass(frozen=True)
class Schema:
    """Names of all columns and operators that a network expects.

    Networks select columns of an observation by name, so that a core may write additional or reordered
    columns.

    Attributes:
        columns: column names in order, by array ("node", "edge", "global", "candidate").
        ops: operator names; their position is the row of the embedding, and one extra row stands for every
            unknown operator.
    """

    columns: Mapping[str, tuple[str, ...]]
    ops: tuple[str, ...]

    @classmethod
    def current(cls) -> Schema:
        """Return the schema of this build of the core."""
        names = tuple(str(op["name"]) for op in _C.ops())
        return cls({array: columns(array) for array in ARRAYS}, names)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Invert `to_json`.

        Raises:
            AgentError: the text is not a schema.
        """
        try:
            given = decoded(text)
            named = {array: tuple(map(str, given["columns"][array])) for array in ARRAYS}
            return cls(named, tuple(map(str, given["ops"])))
        except (ValueError, KeyError, TypeError) as error:
            raise AgentError("the schema of a checkpoint is malformed", got=repr(error)) from error

    def to_json(self) -> str:
        """Return JSON with sorted keys: equal schemas have equal texts."""
        return json.dumps({"columns": dict(self.columns), "ops": self.ops}, sort_keys=True)

    @property
    def hash(self) -> str:
        """Hash of the columns, not of the operators: sixteen hexadecimal digits."""
        text = json.dumps(dict(self.columns), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def width(self, array: str) -> int:
        """Number of columns of an array."""
        return len(self.columns[array])

    def column(self, array: str, name: str) -> int:
        """Position of a column."""
        return self.columns[array].index(name)

    def check(self, core: Schema) -> None:
        """Check that no column is missing. Additional columns are fine.

        Args:
            core: the schema that the core of this process writes.

        Raises:
            AgentError: a column is missing; the message names it.
        """
        for array in ARRAYS:
            missing = [name for name in self.columns[array] if name not in core.columns[array]]
            if missing:
                raise AgentError(
                    "the agent was trained with a column that this version does not write",
                    where=f"the {array} features",
                    expected=", ".join(missing),
                    got=", ".join(core.columns[array]),
                    todo="train an agent with this version: python training/retrain.py",
                )

    @functools.cached_property
    def _positions(self) -> dict[str, list[int] | None]:
        """Positions of the columns of each array in this core's output; None for all of them in order."""
        core = Schema.current()
        return {
            array: None if names == core.columns[array] else [core.column(array, name) for name in names]
            for array, names in self.columns.items()
        }

    def select(self, seen: Observation, array: str) -> Tensor:
        """Return the features of an array in the order of this schema, [rows, width]."""
        features, positions = seen.features(array), self._positions[array]
        return features if positions is None else features[:, positions]

    def rows_of_ops(self, names: Sequence[str]) -> Tensor:
        """Return embedding rows for operators of another vocabulary, [len]; the last row is "unknown"."""
        known = {name: i for i, name in enumerate(self.ops)}
        return torch.tensor([known.get(name, len(self.ops)) for name in names], dtype=torch.int64)


@dataclasses.dataclass(frozen=True)
class Observation:
    """A batch of B episodes, with the columns that the core of this process writes.

    Attributes:
        node_offsets, edge_offsets, candidate_offsets: [B + 1], rows of each episode.
        ops: [N], position in `_C.ops()`.
        nodes, edges, globals, candidates: float32 features, one row per node, edge, episode, candidate.
        edge_index: [2, E], rows of nodes: producer, reader.
        substitutions, locations: [C], those of the first member of a candidate.
        matched_offsets: [C + 1]; matched: [M], rows of the nodes that a candidate matches.
    """

    node_offsets: Tensor
    edge_offsets: Tensor
    candidate_offsets: Tensor
    ops: Tensor
    nodes: Tensor
    edge_index: Tensor
    edges: Tensor
    globals: Tensor
    substitutions: Tensor
    locations: Tensor
    candidates: Tensor
    matched_offsets: Tensor
    matched: Tensor

    def features(self, array: str) -> Tensor:
        """Return the features of "node", "edge", "global" or "candidate", [rows, width]."""
        features: Tensor = getattr(self, f"{array}s")
        return features

    def column(self, array: str, name: str) -> Tensor:
        """Return one feature by name, [rows]."""
        return self.features(array)[:, columns(array).index(name)]

    @property
    def num_episodes(self) -> int:
        """B."""
        return len(self.node_offsets) - 1

    @property
    def counts(self) -> Tensor:
        """[B], number of candidates of each episode, which is also the stop action."""
        return self.candidate_offsets.diff()

    @functools.cached_property
    def node_episode(self) -> Tensor:
        """[N], episode of each node."""
        return rows_of(self.node_offsets)

    @functools.cached_property
    def candidate_episode(self) -> Tensor:
        """[C], episode of each candidate."""
        return rows_of(self.candidate_offsets)

    @functools.cached_property
    def matched_candidate(self) -> Tensor:
        """[M], candidate of each reference."""
        return rows_of(self.matched_offsets)

    def split(self) -> list[Observation]:
        """Split into episodes; each is a copy."""
        return [self.episode(i) for i in range(self.num_episodes)]

    def episode(self, index: int) -> Observation:
        """Return a copy of one episode, with rows counted from 0."""

        def rows(offsets: Tensor) -> slice:
            return slice(int(offsets[index]), int(offsets[index + 1]))

        node, edge, candidate = (
            rows(each) for each in (self.node_offsets, self.edge_offsets, self.candidate_offsets)
        )
        matched_offsets = self.matched_offsets[candidate.start : candidate.stop + 1]
        first = int(matched_offsets[0])
        return Observation(
            node_offsets=torch.tensor([0, node.stop - node.start]),
            edge_offsets=torch.tensor([0, edge.stop - edge.start]),
            candidate_offsets=torch.tensor([0, candidate.stop - candidate.start]),
            ops=self.ops[node].clone(),
            nodes=self.nodes[node].clone(),
            edge_index=self.edge_index[:, edge] - node.start,
            edges=self.edges[edge].clone(),
            globals=self.globals[index : index + 1].clone(),
            substitutions=self.substitutions[candidate].clone(),
            locations=self.locations[candidate].clone(),
            candidates=self.candidates[candidate].clone(),
            matched_offsets=matched_offsets - first,
            matched=self.matched[first : int(matched_offsets[-1])] - node.start,
        )


_FIELDS = tuple(field.name for field in dataclasses.fields(Observation))


def rows_of(offsets: Tensor) -> Tensor:
    """Expand offsets to row indices: [0, 2, 5] becomes [0, 0, 1, 1, 1]."""
    return torch.repeat_interleave(offsets.diff())


def observe(env: _C.VecRewriteEnv, envs: Sequence[int] = ()) -> Observation:
    """Observe some or all episodes of an environment."""
    return _as_tensors(observe_arrays(env, envs))


def _as_tensors(arrays: Arrays) -> Observation:
    """Return tensors that share memory with the arrays."""
    return Observation(**{name: torch.from_numpy(arrays[name]) for name in _FIELDS})


def collate(observations: Sequence[Observation]) -> Observation:
    """Concatenate observations: the episodes of the first, then those of the second, and so on."""
    if len(observations) == 1:
        return observations[0]

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(each, name) for each in observations])

    def offsets(name: str) -> Tensor:
        counts = [getattr(each, name).diff() for each in observations]
        return torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(counts).cumsum(0)])

    firsts = [0]
    for each in observations:
        firsts.append(firsts[-1] + len(each.ops))
    shifted = list(zip(observations, firsts, strict=False))
    return Observation(
        node_offsets=offsets("node_offsets"),
        edge_offsets=offsets("edge_offsets"),
        candidate_offsets=offsets("candidate_offsets"),
        matched_offsets=offsets("matched_offsets"),
        edge_index=torch.cat([each.edge_index + first for each, first in shifted], dim=1),
        matched=torch.cat([each.matched + first for each, first in shifted]),
        **{
            name: joined(name)
            for name in ("ops", "nodes", "edges", "globals", "substitutions", "locations", "candidates")
        },
    )
