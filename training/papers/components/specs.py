"""The specs of all components: inputs, outputs, how each is built and how it is called.

Letters in shapes follow the project's convention: B episodes, T steps, N nodes, E edges, C candidates, M
matched nodes. Sizes fixed by the configuration are numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchrlopt.agent.networks.actions import KEPT_GLOBALS, Choices, LatentState, Legal
from torchrlopt.agent.networks.agent_network import features_of
from torchrlopt.agent.observation import Observation, Schema
from torchrlopt.substitutions import load_library
from training.collectors.collector import Collector
from training.collectors.worker import Task, state_of
from training.config import Config
from training.episodes.candidate_task import controller_config
from training.episodes.random_keys import gumbel_of
from training.graphs.samplers import NUM_PARAMETERS, POOL
from training.learning.pyg import with_meta_layers
from training.learning.world_data import Replay
from training.networks.candidate_controller import CandidateController, Policy, new_controller
from training.networks.encoders import ENCODERS
from training.networks.two_stage_controller import TwoStageController
from training.papers.components.component import Array, Many, Space, Spec
from training.rollout import Rollout, RolloutBuilder
from training.samplers import Place, draw_points
from training.world.latent_controller import MODELS, LatentConfig
from training.world.world_model import WorldModel

WEIGHTS = Array(("bytes",), "uint8")
KEYS = Array(("keys", 3), "int64")  # seed, update, group

_columns = Schema.current()
OBSERVATION: Mapping[str, Space] = {
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
}
OUTCOME: Mapping[str, Space] = {
    "reward": Array(("B",)),
    "terminated": Array(("B",), "bool"),
    "ended": Array(("B",), "bool"),
}
ROLLOUT: Mapping[str, Space] = {
    "states": Many(OBSERVATION),
    "actions": Array(("T", "B"), "int64"),
    "log_probs": Array(("T", "B")),
    "rewards": Array(("T", "B")),
    "values": Array(("T+1", "B")),
    "terminated": Array(("T", "B"), "bool"),
    "ended": Array(("T", "B"), "bool"),
    "active": Array(("T", "B"), "bool"),
}

SEARCHED_ROLLOUT: Mapping[str, Space] = {
    **ROLLOUT,
    "policies": Many(Array(("rows",))),  # of `action_groups`
    "best": Array(("T+1", "B")),
    "found": Array(("T", "B")),
}


def decision(actions: Array) -> dict[str, Space]:
    """Outputs of a controller, for actions of one space."""
    return {"actions": actions, "log_probs": Array(("B",)), "values": Array(("B",))}


def legal_space(substitutions: int) -> Mapping[str, Space]:
    """Space of `Legal`, for S substitutions."""
    return {
        "mask": Array(("B", substitutions + 1), "bool"),
        "num_locations": Array(("B", substitutions), "int64"),
        "savings": Array(("B", substitutions)),
    }


def sequences_space(features: int, substitutions: int) -> Mapping[str, Space]:
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


def seeded(seed: int, make: Callable[[], Any]) -> Any:
    """Create networks from a seed, without changing torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def sampler(config: Config) -> Spec:
    """Free parameters of the graphs of groups. Standalone, it assumes a policy equally unsure of each."""

    def run(name: str, keys: Tensor) -> Mapping[str, Any]:
        places = [Place(seed, update, group, config.groups) for seed, update, group in keys.tolist()]
        drawn = [
            draw_points(name, place, NUM_PARAMETERS, lambda units: units[:, 0] * 0, POOL) for place in places
        ]
        return {"points": np.concatenate(drawn)}

    points = Array(("keys", NUM_PARAMETERS), "float64")
    return Spec("sampler", {"keys": KEYS}, {"points": points}, lambda: config.sampler, run)


def encoder(config: Config) -> Spec:
    """Embeddings of nodes and graphs, for rows that observe real graphs."""

    def build() -> nn.Module:
        made = ENCODERS[config.encoder](Schema.current(), config.width, config.rounds)
        with_meta_layers(made)
        return made

    def run(module: nn.Module, observation: Observation) -> Mapping[str, Any]:
        nodes, graphs = module(observation)
        return {"nodes": nodes, "graphs": graphs}

    gives = {"nodes": Array(("N", config.width)), "graphs": Array(("B", config.width))}
    return Spec("encoder", {"observation": OBSERVATION}, gives, lambda: seeded(config.seed, build), run)


def latent_encoder(config: Config, sizes: LatentConfig, substitutions: int) -> Spec:
    """The world model's view of graphs: embeddings, the two costs, and what is legal."""

    def build() -> nn.Module:
        made = ENCODERS[sizes.encoder](Schema.current(), sizes.width)
        with_meta_layers(made)
        return made

    def run(module: nn.Module, observation: Observation) -> Mapping[str, Any]:
        legal = Choices(observation, substitutions, sizes.has_macros).legal
        return {"features": features_of(module, observation), "legal": legal}

    gives: dict[str, Space] = {"features": Array(("B", width_of(sizes))), "legal": legal_space(substitutions)}
    return Spec("encoder", {"observation": OBSERVATION}, gives, lambda: seeded(config.seed, build), run)


def width_of(sizes: LatentConfig) -> int:
    """G, the number of features in the world model's view of a graph."""
    return sizes.width + len(KEPT_GLOBALS)


class _Given(nn.Module):
    """Stands in for an encoder: returns embeddings computed elsewhere."""

    embeddings: tuple[Tensor, Tensor]

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Nodes [N, W], graphs [B, W]."""
        del observation
        return self.embeddings


def controller(config: Config) -> Spec:
    """Scores of all candidates and of stop, and the value."""

    def build() -> CandidateController:
        made = new_controller(load_library(), controller_config(config), config.seed)
        made.encoder = _Given()  # type: ignore[assignment]
        return made

    def run(
        module: CandidateController, observation: Observation, nodes: Tensor, graphs: Tensor
    ) -> Mapping[str, Any]:
        module.encoder.embeddings = nodes, graphs  # type: ignore[assignment]
        actions, told = module.act(observation, _draw(config))
        return {"actions": actions, "log_probs": told.log_prob, "values": told.value}

    takes = {"observation": OBSERVATION, **encoder(config).gives}
    return Spec("controller", takes, decision(Array(("B",), "int64")), build, run)


def world_model(config: Config, sizes: LatentConfig, rules: Tensor) -> Spec:
    """One imagined step: next state, reward, whether it is the last, and what is legal afterwards."""
    count = len(rules)

    def build() -> WorldModel:
        made: WorldModel = seeded(config.seed, lambda: MODELS[config.row](width_of(sizes), rules))
        return made

    def run(model: WorldModel, features: Tensor, legal: Any, actions: Tensor) -> Mapping[str, Any]:
        source = torch.Generator().manual_seed(config.seed)
        begin = model.start(features, _legal(legal))
        after, told = model.step(begin, actions, source, config.temperature_dream)
        return {
            "latent": after.observed().features,
            "imagined": {"reward": told.reward, "done": told.done, "legal": after.legal},
        }

    latent = Array(("B", _latent_width(config, sizes, rules)))
    imagined: dict[str, Space] = {"reward": Array(("B",)), "done": Array(("B",)), "legal": legal_space(count)}
    takes: dict[str, Space] = {
        "features": Array(("B", width_of(sizes))),
        "legal": legal_space(count),
        "actions": Array(("B", 2), "int64"),
    }
    return Spec("world model", takes, {"latent": latent, "imagined": imagined}, build, run)


def _latent_width(config: Config, sizes: LatentConfig, rules: Tensor) -> int:
    """F, read from a model built without allocating its weights."""
    with torch.device("meta"):
        return MODELS[config.row](width_of(sizes), rules.to("meta")).state_width


def latent_controller(config: Config, sizes: LatentConfig, rules: Tensor) -> Spec:
    """A substitution or stop, then one of its locations, and the value."""
    width = _latent_width(config, sizes, rules)

    def build() -> TwoStageController:
        made: TwoStageController = seeded(config.seed, lambda: TwoStageController(width, rules))
        return made

    def run(policy: TwoStageController, latent: Tensor, legal: Any) -> Mapping[str, Any]:
        actions, told = policy.act(LatentState(latent, _legal(legal)), _draw(config))
        return {"actions": actions, "log_probs": told.log_prob, "values": told.value}

    takes: dict[str, Space] = {"latent": Array(("B", width)), "legal": legal_space(len(rules))}
    return Spec("controller", takes, decision(Array(("B", 2), "int64")), build, run)


def _legal(given: Any) -> Legal:
    if isinstance(given, Legal):
        return given
    return Legal(**{field.name: given[field.name] for field in dataclasses.fields(Legal)})


def _draw(config: Config) -> Any:
    return gumbel_of(torch.Generator().manual_seed(config.seed))


def rollout_memory() -> Spec:
    """Turns steps into episodes, which are used for learning once."""

    def run(kind: type[RolloutBuilder], observation: Any, outcome: Any, **told: Tensor) -> Mapping[str, Any]:
        actions, log_probs, values = (told[name] for name in ("actions", "log_probs", "values"))
        builder = kind(len(actions))
        earned = (outcome[name] for name in ("reward", "terminated", "ended"))
        builder.add(observation, actions, log_probs, values, *earned)
        return {"rollout": builder.finish(values)}

    takes = {"observation": OBSERVATION, **decision(Array(("B",), "int64")), "outcome": OUTCOME}
    return Spec("memory", takes, {"rollout": ROLLOUT}, lambda: RolloutBuilder, run)


def replay_memory(features: int, substitutions: int) -> Spec:
    """All real episodes of a run, which a world model learns from repeatedly."""
    space = sequences_space(features, substitutions)

    def run(replay: Replay, episodes: Any) -> Mapping[str, Any]:
        replay.add([each.seen for each in episodes])
        return {"replay": replay.joined()}

    return Spec("memory", {"episodes": Many({"seen": space})}, {"replay": space}, Replay, run)


def collector(config: Config, task: Task, key_of: Callable[..., Any], gives: str, space: Space) -> Spec:
    """Lets workers play the episodes of keys.

    Args:
        config: the kind and number of workers.
        task: what workers do.
        key_of: maps seed, update and group to a key of the task.
        gives: name of the collected value.
        space: of the value collected under one key.
    """

    def build() -> Collector:
        return Collector(task, config.collector, config.workers, config.ray)

    def run(made: Collector, weights: np.ndarray, keys: Tensor) -> Mapping[str, Any]:
        found = made.collect(weights.tobytes(), [key_of(*key) for key in keys.tolist()])
        return {gives: [each for each in found if each is not None]}

    return Spec("collector", {"weights": WEIGHTS, "keys": KEYS}, {gives: Many(space)}, build, run)


def learner(
    config: Config,
    update: Callable[..., Any],
    policy: Callable[[], Policy],
    rollout: Space,
    state: Callable[[Any], bytes] = state_of,
) -> Spec:
    """One update of a policy from the episodes that it played.

    Args:
        config: learning settings.
        update: `training.learning.ppo.update` or a function with the same interface.
        policy: creates the policy to train.
        rollout: space of its episodes.
        state: serialises everything of a policy that workers need.
    """

    def build() -> tuple[Any, torch.optim.Optimizer]:
        made: Any = policy()
        return made, torch.optim.Adam(made.parameters(), config.learning_rate)

    def run(built: tuple[Any, torch.optim.Optimizer], rollouts: list[Rollout]) -> Mapping[str, Any]:
        made, optimiser = built
        made.train()
        update(made, optimiser, rollouts, config, torch.Generator().manual_seed(config.seed))
        return {"weights": np.frombuffer(state(made), dtype=np.uint8)}

    return Spec("learner", {"rollouts": Many(rollout)}, {"weights": WEIGHTS}, build, run)
