"""Plan files: plans as portable JSON.

A file contains only names of substitutions and numbers. Reading one executes nothing; its steps are replayed
through the checks of the core, like every plan.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from torchrlopt.errors import SearchError
from torchrlopt.storage.checked_json import checksum, parsed
from torchrlopt.storage.files import read_bounded, write_whole

KIND = "torchrlopt plan"
FORMAT = 1
MAX_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class SavedPlan:
    """The plans of a model: one for each of its graphs.

    Attributes:
        graphs: for each graph, the result of `Plan.as_dict` (hashes of graph and library, steps, costs) and
            the "executor" that the plan was made for.
        versions: versions of torchrlopt and torch that made it.
    """

    graphs: tuple[Mapping[str, Any], ...]
    versions: Mapping[str, str]

    @classmethod
    def made_here(cls, graphs: tuple[Mapping[str, Any], ...]) -> SavedPlan:
        """Construct with the versions of this installation."""
        return cls(graphs, {name: metadata.version(name) for name in ("torchrlopt", "torch")})

    @property
    def num_steps(self) -> int:
        """Number of steps over all graphs."""
        return sum(len(graph["steps"]) for graph in self.graphs)

    def of(self, graph_hash: str) -> Mapping[str, Any] | None:
        """Return the plan of a graph, or None."""
        return next((each for each in self.graphs if each.get("graph_hash") == graph_hash), None)

    def save(self, path: str | Path) -> None:
        """Write the file atomically.

        Raises:
            SearchError: there is no plan: planning did not complete for any graph.
            OptionsError: the path exists and is not a file.
            OSError: the file cannot be written.
        """
        write_whole(Path(path).absolute(), self.text().encode())

    def text(self) -> str:
        """Return the content of the file.

        Raises:
            SearchError: there is no plan.
        """
        if not self.graphs:
            raise SearchError("there is no plan to save", todo="the report says what became of the model")
        content = {
            "kind": KIND,
            "format": FORMAT,
            "versions": dict(self.versions),
            "graphs": [dict(graph) for graph in self.graphs],
        }
        return json.dumps({**content, "digest": _digest(content)}, indent=1, allow_nan=False)

    @classmethod
    def load(cls, path: str | Path) -> SavedPlan:
        """Read a file that `save` wrote; it may have been tampered with.

        Raises:
            SearchError: the file does not exist, is damaged, or has another format.
        """
        try:
            content = parsed(read_bounded(Path(path), MAX_BYTES).decode())
        except (OSError, UnicodeDecodeError) as error:
            raise SearchError("a plan cannot be read", where=str(path), got=str(error)) from error
        if content is None or content.get("kind") != KIND:
            raise SearchError(
                "the file is no plan, or is damaged",
                where=str(path),
                expected="JSON that report.plan.save(path) wrote",
            )
        if content.get("format") != FORMAT:
            raise SearchError(
                "the plan is of another format",
                where=str(path),
                expected=FORMAT,
                got=content.get("format"),
                todo="make it again with this version of torchrlopt",
            )
        if content.pop("digest", None) != _digest(content):
            raise SearchError("the plan is damaged: its check sum does not fit", where=str(path))
        match content:
            case {"graphs": [*graphs], "versions": dict(versions)}:
                if all(isinstance(each, dict) for each in graphs):
                    return cls(tuple(graphs), versions)
        raise SearchError("the plan is damaged: a part of it is missing", where=str(path))


def _digest(content: Mapping[str, Any]) -> str:
    return checksum(KIND, json.dumps(content, sort_keys=True))
