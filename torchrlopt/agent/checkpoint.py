"""Agents on disk: a safetensors file with metadata strings, and a manifest with its SHA-256.

Nothing in either file is executed. Agents remain compatible when the package changes: columns of the
observation and operators are found by name, and new ones are ignored; substitutions are scored by their
content, not by their index (a latent agent uses only those that it knows by name). Only a missing column is
an error, which names it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from torchrlopt import _C
from torchrlopt.agent.latency import LatencyModel
from torchrlopt.agent.networks.candidate_controller import CandidateController, ControllerConfig, Guide
from torchrlopt.agent.networks.substitution_encoder import SubstitutionGraphs
from torchrlopt.agent.observation import Schema
from torchrlopt.agent.undisturbed_torch import Room, making_networks
from torchrlopt.agent.world.latent_controller import LatentConfig, LatentController
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

#: Controllers that choose candidates of real graphs, or act in latent states.
Controller = CandidateController | LatentController


@dataclasses.dataclass
class Agent:
    """A controller in evaluation mode, with its provenance.

    Attributes:
        controller: the networks; control experiments may use another `Guide`.
        metadata: provenance: library hash, seeds, training manifest, hours, hardware, scores; all strings.
        latency: latency model fitted on the training device; None if nothing was measured.
    """

    controller: Guide | LatentController
    metadata: dict[str, str]
    latency: LatencyModel | None = None


def manifest_path(path: Path) -> Path:
    """Return the path of a checkpoint's manifest."""
    return path.with_suffix(".json")


def save(path: Path, controller: Controller, library: _C.Library, extra: Mapping[str, Any]) -> None:
    """Write checkpoint and manifest, each atomically.

    Args:
        path: path of the safetensors file.
        controller: the networks.
        library: the library that they were trained with.
        extra: further metadata; values that are not strings are encoded as JSON.
    """
    metadata = {
        **{name: value if isinstance(value, str) else json.dumps(value) for name, value in extra.items()},
        "format": str(FORMAT),
        "kind": "latent" if isinstance(controller, LatentController) else "candidates",
        "architecture": json.dumps(dataclasses.asdict(controller.config)),
        "schema": controller.schema.to_json(),
        "schema_hash": controller.schema.hash,
        "library_hash": library.hash,
    }
    if isinstance(controller, LatentController):
        metadata["substitutions"] = json.dumps(controller.names)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in controller.state_dict().items()}
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
        AgentError: a file is missing, damaged or not an agent, or a column is missing; the message says
            which.
    """
    content = _verified_content(path)
    metadata = _metadata(path, content)
    if metadata.get("format") != str(FORMAT):
        raise AgentError(
            "the checkpoint has another format",
            where=str(path),
            expected=FORMAT,
            got=metadata.get("format"),
        )
    schema = Schema.from_json(metadata.get("schema", ""))
    schema.check(Schema.current())
    try:
        with making_networks():
            tensors = load_tensors(content)
        # The header may request networks of any size: limit them to what the weights in the file can fill.
        with making_networks(most=_room_for(tensors.values())):
            controller = _blank(metadata, schema, library)
            controller.load_state_dict(tensors)
    except (*_REFUSALS, SafetensorError) as error:
        raise AgentError("the checkpoint is no agent", where=str(path), got=repr(error)[:300]) from error
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise AgentError("the checkpoint is no agent", where=str(path), got="weights that are not finite")
    if metadata.get("library_hash") != library.hash:
        logger.debug(
            "%s was trained with library %s, here %s", path, metadata.get("library_hash"), library.hash
        )
    controller.eval()
    return Agent(controller, metadata, _latency(path, metadata))


def _latency(path: Path, metadata: Mapping[str, str]) -> LatencyModel | None:
    if "latency" not in metadata:
        return None
    try:
        given = decoded(metadata["latency"])
    except ValueError as error:
        raise AgentError("the checkpoint is no agent", where=str(path), got=repr(error)) from error
    return LatencyModel.from_dict(given)


def _blank(metadata: Mapping[str, str], schema: Schema, library: _C.Library) -> Controller:
    """Construct the networks that a file describes, before loading their weights."""
    sizes = decoded(metadata["architecture"])
    if metadata["kind"] == "latent":
        names = [str(name) for name in decoded(metadata["substitutions"])]
        return LatentController(schema, LatentConfig(**sizes), names)
    return CandidateController(schema, SubstitutionGraphs.of(library, schema), ControllerConfig(**sizes))


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


def new_controller(
    library: _C.Library,
    config: ControllerConfig | None = None,
    seed: int = 0,
    schema: Schema | None = None,
) -> CandidateController:
    """Create an untrained controller: the start of training and the control in comparisons.

    Args:
        library: the substitutions that it scores.
        config: sizes of the networks.
        seed: seed of the weights.
        schema: the columns and operators that it knows; None for those of this core.

    The global generator of torch is not changed. May be called inside a Dynamo call, like `load`.
    """
    schema = schema or Schema.current()
    with making_networks(seed):
        return CandidateController(schema, SubstitutionGraphs.of(library, schema), config)


def random_control(agent: Agent, library: _C.Library, seed: int) -> Agent:
    """Create a control agent: networks of the same sizes with random weights.

    An untrained scorer ranks candidates like greedy, so its last layer is randomised too.

    Raises:
        AgentError: the agent does not score candidates.
    """
    given = agent.controller
    if not isinstance(given, CandidateController):
        raise AgentError("there is no random control of a latent agent")
    control = new_controller(library, given.config, seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in control.scorer.score[-1].parameters():
        parameter.data.normal_(std=1.0, generator=generator)
    return Agent(control.eval(), {})
