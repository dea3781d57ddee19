"""Finds the user's source of a captured graph in Dynamo's metadata: lines, modules and input names.

The result is small and holds no references: all nodes of one line share one object.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchrlopt.capture.captured import Captured
from torchrlopt.report import Source
from torchrlopt.torch_private.dynamo import source_of

_FRAME = re.compile(
    r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+), in .*(?:\n    (?P<text>.*))?', re.MULTILINE
)
_ROOT = re.compile(r"^L\['\w+'\](\.__closure__\[\d+\]\.cell_contents)?\.?")
_CHILD = re.compile(r"\._modules\['([^']*)'\]")

_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_ARGUMENT = re.compile(r"^[LG]\['(\w+)'\]")

_NOT_THE_USERS = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/")


def sources_of(captured: Captured) -> Mapping[str, Source]:
    """Return the source of each ONNX node that stands for one call, by the node's name."""
    nodes = {node.name: node for node in captured.aten.graph.nodes}
    known: dict[Source, Source] = {}
    found = {}
    for name, origin in captured.origins.items():
        source = _source_of(nodes[origin].meta)
        if source is not None:
            found[name] = known.setdefault(source, source)
    return found


def _source_of(meta: Mapping[str, Any]) -> Source | None:
    """Return the innermost line that is not torch's or ours; None if neither line nor module is known."""
    frames = [
        frame
        for frame in _FRAME.finditer(meta.get("stack_trace") or "")
        if not frame["file"].startswith(_NOT_THE_USERS)
    ]
    stack = meta.get("nn_module_stack") or {}
    module = path_of(str(next(reversed(stack.values()))[0])) if stack else ""
    if not frames:
        return Source("", 0, "", module) if module else None
    last = frames[-1]
    return Source(_short(last["file"]), int(last["line"]), (last["text"] or "").strip(), module)


def path_of(name: str) -> str:
    """Return a module's path as in `named_modules`."""
    return _ROOT.sub("", _CHILD.sub(r".\1", name))


def input_names(gm: torch.fx.GraphModule, num_lifted: int) -> tuple[str, ...]:
    """Return the user's names of the inputs of the ATen graph made from Dynamo's graph.

    AOTAutograd puts `num_lifted` of Dynamo's attributes before the inputs.
    """
    lifted = [name for name, _ in (*gm.named_parameters(), *gm.named_buffers())] if num_lifted else []
    lifted = lifted if len(lifted) == num_lifted else [""] * num_lifted
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return (*lifted, *(_input_name(source_of(node), node.name) for node in inputs))


def _input_name(source: Any, name: str) -> str:
    """Return an input's name as the user would write it; `name` if Dynamo does not know its source."""
    found = getattr(source, "name", None)
    if not isinstance(found, str):
        return name
    members = _MEMBER.findall(found)
    return ".".join(members) if members else _ARGUMENT.sub(r"\1", found)


@functools.lru_cache(maxsize=1024)
def _short(file: str) -> str:
    """Return a file as it is imported: relative to the longest matching folder of `sys.path`."""
    folders = [f"{Path(folder).absolute()}/" for folder in sys.path]
    best = max((folder for folder in folders if file.startswith(folder)), key=len, default="")
    return file[len(best) :] if best else "/".join(Path(file).parts[-2:])
