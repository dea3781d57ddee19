"""Checkpoints of all rows, and the agent that is made of one: training/checkpoints.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.agent.agent_cases import LIBRARY, make_env, new_network
from torchrlopt.agent import checkpoint
from torchrlopt.agent.networks.agent_network import Player
from torchrlopt.agent.observation import Schema, observe
from torchrlopt.errors import AgentError
from training import checkpoints
from training.checkpoints import stripped
from training.networks.candidate_controller import ControllerConfig, new_controller
from training.networks.substitution_encoder import SubstitutionEncoder, SubstitutionGraphs
from training.world.latent_controller import LatentConfig, LatentController

SMALL = ControllerConfig(width=16, rounds=2)


def latent(row: str = "wm_plus", has_macros: bool = False) -> LatentController:
    schema = Schema.current()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        rules = SubstitutionEncoder(schema)(SubstitutionGraphs.of(LIBRARY, schema))
        return LatentController(
            schema, LatentConfig(row=row, has_macros=has_macros), LIBRARY.names, rules
        ).eval()


NETWORKS = {
    "agent": lambda: new_network(),
    "candidates": lambda: new_controller(LIBRARY, SMALL),
    "wm": lambda: latent("wm"),
    "wm_plus": lambda: latent(has_macros=True),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_saved_is_what_is_loaded(name: str, tmp_path: Path) -> None:
    given = NETWORKS[name]()
    checkpoints.save(tmp_path / "a.safetensors", given, LIBRARY, {"row": name})
    loaded, metadata = checkpoints.load(tmp_path / "a.safetensors", LIBRARY)
    assert metadata["row"] == name
    assert (type(loaded), loaded.config) == (type(given), given.config)
    for key, tensor in given.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor), key


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "agent"])
def test_the_package_reads_only_agents(name: str, tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "a.safetensors", NETWORKS[name](), LIBRARY, {})
    with pytest.raises(AgentError, match="another kind"):
        checkpoint.load(tmp_path / "a.safetensors", LIBRARY)


@pytest.mark.parametrize("has_macros", [False, True])
def test_a_stripped_agent_plays_like_the_networks_that_were_trained(has_macros: bool) -> None:
    full = latent(has_macros=has_macros)
    torch.nn.init.normal_(full.policy.key.weight, generator=torch.Generator().manual_seed(1))
    network = stripped(full)
    assert sum(tensor.numel() for tensor in network.state_dict().values()) < 2**20
    player, chooser = Player(network, network.rows_of(LIBRARY.names)), full.chooser()
    envs = [make_env(3, has_macros=has_macros) for _ in range(2)]
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]

    def noise(generator: torch.Generator) -> object:
        return lambda sizes: -torch.empty(sum(sizes)).exponential_(generator=generator).log()

    with torch.no_grad():
        for _ in range(6):
            mine = player.choose(observe(envs[0]), noise(generators[0]))
            its = chooser.choose(observe(envs[1]), noise(generators[1]))[2]
            assert torch.equal(mine, its)
            for env in envs:
                env.step(mine.tolist())
    assert envs[0].steps(1)


def test_other_networks_are_no_agents() -> None:
    for controller in (latent("wm"), new_controller(LIBRARY, SMALL)):
        with pytest.raises(AgentError, match="only one kind of networks can be an agent"):
            stripped(controller)
