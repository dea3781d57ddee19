"""Checkpoints of all rows, by kind; the package reads the kind "agent" only, which `stripped` makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.agent.networks.agent_network import AgentConfig, AgentNetwork
from torchrlopt.agent.observation import Schema
from torchrlopt.agent.undisturbed_torch import making_networks
from torchrlopt.errors import AgentError
from torchrlopt.storage.checked_json import decoded
from training.networks.candidate_controller import CandidateController, ControllerConfig
from training.networks.substitution_encoder import SubstitutionGraphs
from training.world.latent_controller import LatentConfig, LatentController

Controller = CandidateController | LatentController
Network = AgentNetwork | Controller

#: The row whose networks ship.
SHIPPED_ROW = "wm_plus"


def _candidates(metadata: Mapping[str, str], schema: Schema, library: _C.Library) -> CandidateController:
    sizes = ControllerConfig(**decoded(metadata["architecture"]))
    return CandidateController(schema, SubstitutionGraphs.of(library, schema), sizes)


def _latent(metadata: Mapping[str, str], schema: Schema, library: _C.Library) -> LatentController:
    names = [str(name) for name in decoded(metadata["substitutions"])]
    return LatentController(schema, LatentConfig(**decoded(metadata["architecture"])), names)


#: Each kind, and how its networks are constructed before their weights are loaded.
KINDS: dict[str, checkpoint.Blank] = {
    checkpoint.KIND: checkpoint.blank,
    "candidates": _candidates,
    "latent": _latent,
}


def save(path: Path, network: Network, library: _C.Library, extra: Mapping[str, Any]) -> None:
    """Write networks of any kind; see `torchrlopt.agent.checkpoint.save`."""
    if isinstance(network, AgentNetwork):
        checkpoint.save(path, network, library, extra)
    elif isinstance(network, LatentController):
        checkpoint.write(path, "latent", network, library, {**extra, "substitutions": network.names})
    else:
        checkpoint.write(path, "candidates", network, library, extra)


def load(path: Path, library: _C.Library) -> tuple[Network, dict[str, str]]:
    """Read networks of any kind and their metadata; raises like `torchrlopt.agent.checkpoint.load`."""
    network, metadata = checkpoint.read(path, library, KINDS)
    assert isinstance(network, AgentNetwork | CandidateController | LatentController)
    return network, metadata


def stripped(controller: Controller) -> AgentNetwork:
    """Return the part of networks that acts on real graphs: encoder, memory and policy.

    What predicts the world, the value estimate and the ensemble stay behind.

    Raises:
        AgentError: the networks are not those of `SHIPPED_ROW`.
    """
    config = controller.config
    if not isinstance(config, LatentConfig) or (config.row, config.encoder) != (SHIPPED_ROW, "graph_network"):
        raise AgentError(
            "only one kind of networks can be an agent", expected=f"row {SHIPPED_ROW}", got=str(config)
        )
    assert isinstance(controller, LatentController)
    sizes = AgentConfig(config.width, config.rule_width, config.has_macros)
    with making_networks():
        network = AgentNetwork(controller.schema, sizes, controller.names)
        state = controller.state_dict()
        network.load_state_dict({name: state[name] for name in network.state_dict()})
    return network.eval()
