"""Agents on disk: a safetensors file with metadata strings, beside it a manifest with its SHA-256.

Nothing in either file is executed. An agent goes on working when the package changes: columns of the
observation and operators are found by name, and one that is new is not looked at; substitutions are scored by
what they say, not by their number (a latent agent takes only those that it knows by name). Only a column that
is gone is refused, by its name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
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
from torchrlopt.agent.undisturbed_torch import making_networks
from torchrlopt.agent.world.latent_controller import LatentConfig, LatentController
from torchrlopt.errors import AgentError
from torchrlopt.storage.directory import write_whole

logger = logging.getLogger("torchrlopt")

FORMAT = 1  # raised when the meaning of a file changes
MAX_BYTES = 64 * 2**20


#: What plays: candidates of real graphs, or latent states.
Controller = CandidateController | LatentController


@dataclasses.dataclass
class Agent:
    """A controller in evaluation mode and what is known of its making.

    Attributes:
        controller: the networks; a control may have another `Guide`.
        metadata: provenance: library hash, seeds, training manifest, hours, hardware, scores; all strings.
        latency: what was learnt of measured times on the device of the training; None where nothing was
            measured.
    """

    controller: Guide | LatentController
    metadata: dict[str, str]
    latency: LatencyModel | None = None


def manifest_path(path: Path) -> Path:
    """Where the manifest of a checkpoint lies."""
    return path.with_suffix(".json")


def save(path: Path, controller: Controller, library: _C.Library, extra: Mapping[str, Any]) -> None:
    """Write checkpoint and manifest, each in one piece.

    Args:
        path: of the safetensors file.
        controller: the networks.
        library: with which they were trained.
        extra: further metadata; values that are not strings become JSON.
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
        path: of the safetensors file; the manifest lies beside it.
        library: the substitutions that the agent is to choose from.

    Raises:
        AgentError: a file is missing, damaged or no agent, or a column is gone; the message says which.
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
            controller = _blank(metadata, schema, library)
            controller.load_state_dict(load_tensors(content))
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise AgentError("the checkpoint is no agent", where=str(path), got=repr(error)[:300]) from error
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
        given = json.loads(metadata["latency"])
    except ValueError as error:
        raise AgentError("the checkpoint is no agent", where=str(path), got=repr(error)) from error
    return LatencyModel.from_dict(given)


def _blank(metadata: Mapping[str, str], schema: Schema, library: _C.Library) -> Controller:
    """The networks that a file describes, before their weights."""
    sizes = json.loads(metadata["architecture"])
    if metadata["kind"] == "latent":
        return LatentController(schema, LatentConfig(**sizes), json.loads(metadata["substitutions"]))
    return CandidateController(schema, SubstitutionGraphs.of(library, schema), ControllerConfig(**sizes))


def _verified_content(path: Path) -> bytes:
    """The bytes of the file, if they are those that the manifest is about."""
    try:
        manifest = json.loads(manifest_path(path).read_text(encoding="utf-8"))
        expected, size = str(manifest["sha256"]), path.stat().st_size
        if size > MAX_BYTES:
            raise AgentError("the checkpoint is too large", where=str(path), expected=MAX_BYTES, got=size)
        content = path.read_bytes()
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
    """The strings in the header of a safetensors file."""
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        return {str(name): str(value) for name, value in header.get("__metadata__", {}).items()}
    except (ValueError, AttributeError) as error:
        raise AgentError("the checkpoint is no safetensors file", where=str(path), got=repr(error)) from error


def new_controller(
    library: _C.Library,
    config: ControllerConfig | None = None,
    seed: int = 0,
    schema: Schema | None = None,
) -> CandidateController:
    """An untrained controller: the control in every comparison, and where training begins.

    Args:
        library: the substitutions that it scores.
        config: its sizes.
        seed: of its weights.
        schema: the columns and operators that it knows; None for all that this core has.

    The global generator of torch is left as it was. May be called inside a Dynamo call, as `load` may.
    """
    schema = schema or Schema.current()
    with making_networks(seed):
        return CandidateController(schema, SubstitutionGraphs.of(library, schema), config)


def random_control(agent: Agent, library: _C.Library, seed: int) -> Agent:
    """The control of a comparison: networks of the same sizes with random weights.

    An untrained scorer would keep greedy's order, so its last layer is random too.

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
