"""Plans as files: what the plan store keeps of a graph, as JSON that a user can carry elsewhere.

A file names substitutions and numbers only. Reading one executes nothing; what it says is replayed through
the checks of the core, as every plan is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from torchrlopt.errors import SearchError
from torchrlopt.storage.checked_json import checksum, is_whole, parsed
from torchrlopt.storage.files import read_bounded, write_whole

KIND = "torchrlopt plan"
FORMAT = 1
MAX_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class SavedPlan:
    """The plans of a model: one for each of its graphs.

    Attributes:
        graphs: for each graph what `Plan.as_dict` gives (hashes of graph and library, steps, costs) and
            the "executor" that the plan was made for.
        versions: of torchrlopt and torch that made it.
    """

    graphs: tuple[Mapping[str, Any], ...]
    versions: Mapping[str, str]

    @classmethod
    def made_here(cls, graphs: tuple[Mapping[str, Any], ...]) -> SavedPlan:
        """With the versions of this installation."""
        return cls(graphs, {name: metadata.version(name) for name in ("torchrlopt", "torch")})

    @property
    def num_steps(self) -> int:
        """Over all graphs."""
        return sum(len(graph["steps"]) for graph in self.graphs)

    def of(self, graph_hash: str) -> Mapping[str, Any] | None:
        """The plan of a graph; None where there is none."""
        return next((each for each in self.graphs if each.get("graph_hash") == graph_hash), None)

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all.

        Raises:
            SearchError: there is no plan: no graph came so far that one was made.
            OptionsError: something is at that path that is no file.
            OSError: the file cannot be written.
        """
        write_whole(Path(path).absolute(), self.text().encode())

    def text(self) -> str:
        """What is in the file.

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
            SearchError: there is no such file, it is damaged, or of another format.
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
        digest = content.pop("digest", None)
        if not is_whole(KIND, _text(content), digest):
            raise SearchError("the plan is damaged: its check sum does not fit", where=str(path))
        graphs, versions = content.get("graphs"), content.get("versions")
        if not isinstance(versions, dict) or not isinstance(graphs, list) or not _are_objects(graphs):
            raise SearchError("the plan is damaged: a part of it is missing", where=str(path))
        return cls(tuple(graphs), versions)


def _are_objects(values: list[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True)


def _digest(content: Mapping[str, Any]) -> str:
    # Through JSON once, so that the text is that of what will be read.
    return checksum(KIND, _text(json.loads(json.dumps(content, allow_nan=False))))
