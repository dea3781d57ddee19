"""The one place that composes each row: its components and the values passed between them.

    composition(Config.of_row("wm")).wires()

`python training/reproduce.py components` draws it. The trainers (`training.real_trainer`,
`training.dream_trainer`) run the same parts; `tests/training/test_papers_components.py` compares them.

Letters in shapes follow the project's convention: B episodes, T steps, N nodes, E edges, C candidates, M
matched nodes. Sizes fixed by the configuration are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from torchrlopt.agent.networks.actions import KEPT_GLOBALS, kinds_of
from torchrlopt.agent.observation import Schema
from torchrlopt.substitutions import load_library
from training.collectors.collector import Collector
from training.config import Config
from training.device.prices import Prices
from training.episodes.candidate_task import CandidateTask, controller_config
from training.episodes.latent_task import LatentTask, latent_config
from training.graphs.samplers import NUM_PARAMETERS
from training.learning.imagining import optimisers_of, rules_of
from training.learning.pyg import with_meta_layers
from training.networks.candidate_controller import new_controller
from training.networks.encoders import ENCODERS
from training.networks.two_stage_controller import TwoStageController
from training.papers.components.component import Array, Composition, Many, Space, Spec
from training.real_trainer import new_networks
from training.rollout import RolloutBuilder
from training.world.latent_controller import MODELS, LatentController
from training.world.replay import Replay

WEIGHTS = Array(("bytes",), "uint8")
_columns = Schema.current()
#: Values that no component produces: what to play, and the environment's observations and rewards.
OUTSIDE: Mapping[str, Space] = {
    "keys": Array(("keys", 3), "int64"),  # seed, update, group
    "observation": {
        "node_offsets": Array(("B+1",), "int64"),
        "edge_offsets": Array(("B+1",), "int64"),
        "candidate_offsets": Array(("B+1",), "int64"),
        "ops": Array(("N",), "int64"),
        "nodes": Array(("N", _columns.width("node"))),
        "edge_index": Array((2, "E"), "int64"),
        "edges": Array(("E", _columns.width("edge"))),
        "globals": Array(("B", _columns.width("global"))),
        "substitutions": Array(("C",), "int64"),
        "candidates": Array(("C", _columns.width("candidate"))),
        "matched_offsets": Array(("C+1",), "int64"),
        "matched": Array(("M",), "int64"),
    },
    "outcome": {
        "reward": Array(("B",)),
        "terminated": Array(("B",), "bool"),
        "ended": Array(("B",), "bool"),
    },
}
ROLLOUT: Mapping[str, Space] = {
    "states": Many(OUTSIDE["observation"]),
    "actions": Array(("T", "B"), "int64"),
    "log_probs": Array(("T", "B")),
    "rewards": Array(("T", "B")),
    "values": Array(("T+1", "B")),
    "terminated": Array(("T", "B"), "bool"),
    "ended": Array(("T", "B"), "bool"),
    "active": Array(("T", "B"), "bool"),
}
#: Of row "gumbel", whose collector searches a tree.
SEARCHED_ROLLOUT: Mapping[str, Space] = {
    **ROLLOUT,
    "policies": Many(Array(("rows",))),  # of `action_groups`
    "best": Array(("T+1", "B")),
    "found": Array(("T", "B")),
}


def composition(config: Config, prices: Prices | None = None) -> Composition:
    """The components of a configuration's row, checked to be compatible.

    Args:
        config: all arguments of a training.
        prices: of the device; the default device if None.
    """
    compose = _in_imagination if config.row in MODELS else _in_real_episodes
    return compose(config, prices or Prices())


def _in_real_episodes(config: Config, prices: Prices) -> Composition:
    """Rows "mf", "plan" and "gumbel"."""
    rollout = SEARCHED_ROLLOUT if config.row == "gumbel" else ROLLOUT
    decided = _decision(Array(("B",), "int64"))
    observation: dict[str, Space] = {"observation": OUTSIDE["observation"]}
    embeddings: dict[str, Space] = {
        "nodes": Array(("N", config.width)),
        "graphs": Array(("B", config.width)),
    }

    def controller() -> nn.Module:
        made = new_controller(load_library(), controller_config(config), config.seed)
        del made.encoder
        return made

    def learner() -> tuple[Any, torch.optim.Optimizer]:
        made: Any = new_networks(config)
        return made, torch.optim.Adam(made.parameters(), config.learning_rate)

    outcome = {"outcome": OUTSIDE["outcome"]}
    specs = (
        _sampler(config),
        Spec(
            "encoder", observation, embeddings, _encoder(config, config.encoder, config.width, config.rounds)
        ),
        Spec("controller", {**observation, **embeddings}, decided, controller),
        Spec("memory", {**observation, **decided, **outcome}, {"rollout": ROLLOUT}, lambda: RolloutBuilder),
        _collector(config, CandidateTask(config, prices), {"rollouts": Many(rollout)}),
        Spec("learner", {"rollouts": Many(rollout)}, {"weights": WEIGHTS}, learner),
    )
    return Composition(config.row, specs, OUTSIDE)


def _in_imagination(config: Config, prices: Prices) -> Composition:
    """Rows "wm" and "wm_plus"."""
    rules = _seeded(config, lambda: rules_of(load_library(), Schema.current()))
    sizes = latent_config(config, rules)
    kinds = kinds_of(rules, sizes.has_macros)
    width, legal = sizes.width + len(KEPT_GLOBALS), _legal(len(kinds))
    with torch.device("meta"):  # without allocating the weights
        latent = Array(("B", MODELS[config.row](width, kinds.to("meta")).state_width))
    actions = Array(("B", 2), "int64")
    features: dict[str, Space] = {"features": Array(("B", width)), "legal": legal}
    state: dict[str, Space] = {"latent": latent, "legal": legal}
    imagined: dict[str, Space] = {"reward": Array(("B",)), "done": Array(("B",)), "legal": legal}
    replay = _sequences(width, len(kinds))
    episodes = Many({"seen": replay})

    def world_model() -> Any:
        return MODELS[config.row](width, kinds)

    def controller() -> TwoStageController:
        return TwoStageController(int(latent.shape[1]), kinds)

    def learner() -> tuple[LatentController, torch.optim.Optimizer, torch.optim.Optimizer]:
        def networks() -> LatentController:
            return LatentController(Schema.current(), sizes, load_library().names, rules)

        made = _seeded(config, networks)
        return made, *optimisers_of(made, config)

    specs = (
        _sampler(config),
        Spec(
            "encoder",
            {"observation": OUTSIDE["observation"]},
            features,
            _encoder(config, sizes.encoder, sizes.width),
        ),
        Spec(
            "world model",
            {**features, "actions": actions},
            {"latent": latent, "imagined": imagined},
            lambda: _seeded(config, world_model),
        ),
        Spec("controller", state, _decision(actions), lambda: _seeded(config, controller)),
        _collector(config, LatentTask(config, prices, sizes), {"episodes": episodes}),
        Spec("memory", {"episodes": episodes}, {"replay": replay}, Replay),
        Spec("learner", {"replay": replay}, {"weights": WEIGHTS}, learner),
    )
    return Composition(config.row, specs, OUTSIDE)


def _sampler(config: Config) -> Spec:
    """Free parameters of the graphs of groups."""
    points = Array(("keys", NUM_PARAMETERS), "float64")
    return Spec("sampler", {"keys": OUTSIDE["keys"]}, {"points": points}, lambda: config.sampler)


def _encoder(config: Config, name: str, *sizes: int) -> Callable[[], nn.Module]:
    """Embeddings of nodes and graphs."""

    def build() -> nn.Module:
        made = ENCODERS[name](Schema.current(), *sizes)
        with_meta_layers(made)
        return made

    return lambda: _seeded(config, build)


def _collector(config: Config, task: Any, gives: Mapping[str, Space]) -> Spec:
    """Lets workers play the episodes of keys."""

    def build() -> Collector:
        return Collector(task, config.collector, config.workers, config.ray)

    return Spec("collector", {"weights": WEIGHTS, "keys": OUTSIDE["keys"]}, gives, build)


def _seeded(config: Config, make: Callable[[], Any]) -> Any:
    """Create networks from the seed, without changing torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return make()


def _decision(actions: Array) -> dict[str, Space]:
    """Outputs of a controller, for actions of one space."""
    return {"actions": actions, "log_probs": Array(("B",)), "values": Array(("B",))}


def _legal(substitutions: int) -> Mapping[str, Space]:
    """Space of `Legal`, for S substitutions."""
    return {
        "mask": Array(("B", substitutions + 1), "bool"),
        "num_locations": Array(("B", substitutions), "int64"),
        "savings": Array(("B", substitutions)),
    }


def _sequences(features: int, substitutions: int) -> Mapping[str, Space]:
    """Space of `Sequences`, for G features and S substitutions."""
    return {
        "features": Array(("B", "T+1", features)),
        "actions": Array(("B", "T", 2), "int64"),
        "rewards": Array(("B", "T")),
        "terminated": Array(("B", "T"), "bool"),
        "mask": Array(("B", "T+1", substitutions + 1), "bool"),
        "num_locations": Array(("B", "T+1", substitutions), "uint8"),
        "savings": Array(("B", "T+1", substitutions), "float16"),
        "taken": Array(("B", "T")),
        "valid": Array(("B", "T"), "bool"),
    }
