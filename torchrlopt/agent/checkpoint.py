"""Agents on disk: a safetensors file with metadata strings, and a manifest with its SHA-256.

Nothing in either file is executed. Agents remain compatible when the package changes: columns of the
observation, operators and substitutions are found by name, and new ones are ignored. Only a missing column is
an error, which names it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from torchrlopt import _C
from torchrlopt.agent.networks.agent_network import AgentConfig, AgentNetwork
from torchrlopt.agent.observation import Schema
from torchrlopt.agent.undisturbed_torch import Room, making_networks
from torchrlopt.errors import AgentError
from torchrlopt.storage.checked_json import decoded
from torchrlopt.storage.files import read_bounded, write_whole

logger = logging.getLogger("torchrlopt")

FORMAT = 1  # bump when the meaning of a file changes
MAX_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 2**20  # tensor names and metadata; ours take 30 kB
MAX_MANIFEST_BYTES = 2**16

# Exceptions that torch and Python raise on invalid sizes, names and types.
_REFUSALS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)

#: The only kind of checkpoint that the package reads; `training/checkpoints.py` has those of all rows.
KIND = "agent"

#: Constructs the networks that a file describes, before their weights are loaded.
Blank = Callable[[Mapping[str, str], Schema, _C.Library], nn.Module]


@dataclasses.dataclass
class Agent:
    """Networks in evaluation mode, with their provenance.

    Attributes:
        network: the networks.
        metadata: provenance: library hash, seeds, training manifest, hours, hardware, scores; all strings.
    """

    network: AgentNetwork
    metadata: dict[str, str]


def manifest_path(path: Path) -> Path:
    """Return the path of a checkpoint's manifest."""
    return path.with_suffix(".json")


def save(path: Path, network: AgentNetwork, library: _C.Library, extra: Mapping[str, Any]) -> None:
    """Write checkpoint and manifest, each atomically.

    Args:
        path: path of the safetensors file.
        network: the networks.
        library: the library that they were trained with.
        extra: further metadata; values that are not strings are encoded as JSON.
    """
    write(path, KIND, network, library, {**extra, "substitutions": network.names})


def write(path: Path, kind: str, network: Any, library: _C.Library, extra: Mapping[str, Any]) -> None:
    """Like `save`, for any networks with a `config` and a `schema`."""
    metadata = {
        **{name: value if isinstance(value, str) else json.dumps(value) for name, value in extra.items()},
        "format": str(FORMAT),
        "kind": kind,
        "architecture": json.dumps(dataclasses.asdict(network.config)),
        "schema": network.schema.to_json(),
        "schema_hash": network.schema.hash,
        "library_hash": library.hash,
    }
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    content = save_tensors(state, metadata)
    manifest = {"file": path.name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    write_whole(manifest_path(path), (json.dumps(manifest, indent=2) + "\n").encode())


def load(path: Path, library: _C.Library) -> Agent:
    """Read a checkpoint.

    Args:
        path: path of the safetensors file; the manifest is next to it.
        library: the substitutions that the agent chooses from.

    Raises:
        AgentError: a file is missing, damaged, not an agent or of another kind, or a column is missing; the
            message says which.
    """
    network, metadata = read(path, library, {KIND: blank})
    assert isinstance(network, AgentNetwork)
    return Agent(network, metadata)


def read(path: Path, library: _C.Library, kinds: Mapping[str, Blank]) -> tuple[nn.Module, dict[str, str]]:
    """Read networks of one of several kinds, in evaluation mode, and their metadata; raises like `load`."""
    content = _verified_content(path)
    metadata = _metadata(path, content)
    if metadata.get("format") != str(FORMAT):
        raise AgentError(
            "the checkpoint has another format",
            where=str(path),
            expected=FORMAT,
            got=metadata.get("format"),
        )
    kind = metadata.get("kind", "")
    if kind not in kinds:
        raise AgentError(
            "the checkpoint is of another kind",
            where=str(path),
            expected=" or ".join(kinds),
            got=kind,
            todo="train an agent: python training/retrain.py",
        )
    schema = Schema.from_json(metadata.get("schema", ""))
    schema.check(Schema.current())
    try:
        with making_networks():
            tensors = load_tensors(content)
        # The header may request networks of any size: limit them to what the weights in the file can fill.
        with making_networks(most=_room_for(tensors.values())):
            network = kinds[kind](metadata, schema, library)
            network.load_state_dict(tensors)
    except (*_REFUSALS, SafetensorError) as error:
        raise AgentError("the checkpoint is no agent", where=str(path), got=repr(error)[:300]) from error
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise AgentError("the checkpoint is no agent", where=str(path), got="weights that are not finite")
    if metadata.get("library_hash") != library.hash:
        logger.debug(
            "%s was trained with library %s, here %s", path, metadata.get("library_hash"), library.hash
        )
    return network.eval(), metadata


def blank(metadata: Mapping[str, str], schema: Schema, library: _C.Library) -> AgentNetwork:
    """Construct the networks of an agent; see `Blank`."""
    names = [str(name) for name in decoded(metadata["substitutions"])]
    return AgentNetwork(schema, AgentConfig(**decoded(metadata["architecture"])), names)


def _room_for(tensors: Iterable[torch.Tensor]) -> Room:
    """Return the limit for networks with these weights, including buffers and temporaries."""
    sizes = [tensor.numel() for tensor in tensors]
    return Room(tensors=4 * len(sizes) + 100, elements=4 * sum(sizes) + 2**16)


def manifest_text(path: Path) -> str:
    """Return the text of a checkpoint's manifest.

    Raises:
        OSError: it is missing, not a regular file, or too large.
        ValueError: it is not text.
    """
    return read_bounded(manifest_path(path), MAX_MANIFEST_BYTES).decode()


def _verified_content(path: Path) -> bytes:
    """Return the bytes of the file after checking them against the manifest."""
    try:
        expected = str(decoded(manifest_text(path))["sha256"])
        content = read_bounded(path, MAX_BYTES)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AgentError("the checkpoint cannot be read", where=str(path), got=str(error)) from error
    got = hashlib.sha256(content).hexdigest()
    if got != expected:
        raise AgentError(
            "the checkpoint is damaged",
            where=str(path),
            expected=f"SHA-256 {expected}",
            got=got,
            todo="install the package again, or train an agent: python training/retrain.py",
        )
    return content


def _metadata(path: Path, content: bytes) -> dict[str, str]:
    """Return the metadata strings in the header of a safetensors file."""
    try:
        length = int.from_bytes(content[:8], "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes, expected up to {MAX_HEADER_BYTES}")
        header = decoded(content[8 : 8 + length])
        return {str(name): str(value) for name, value in header.get("__metadata__", {}).items()}
    except (ValueError, AttributeError) as error:
        raise AgentError("the checkpoint is no safetensors file", where=str(path), got=repr(error)) from error
