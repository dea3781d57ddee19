"""What workers do for the rows "mf" and "plan": real episodes of a `CandidateController`.

The episodes of one graph are always played together, under one key, so that the batches that the networks
see do not depend on how many workers there are.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable

import torch

from torchrlopt import _C
from torchrlopt.agent.checkpoint import new_controller
from torchrlopt.agent.networks.candidate_controller import CandidateController, ControllerConfig
from torchrlopt.agent.observation import Schema
from torchrlopt.agent.rollout import Rollout
from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import Prices, cost_of
from training.episodes.play import CandidateChooser, Key, play_group
from training.episodes.random_keys import Purpose, generator


def controller_config(config: Config) -> ControllerConfig:
    """Sizes of the networks of a run."""
    return ControllerConfig(encoder=config.encoder, width=config.width, rounds=config.rounds)


def state_of(controller: CandidateController) -> bytes:
    """Everything that a worker needs to play like this controller, buffers included."""
    memory = io.BytesIO()
    torch.save({"schema": controller.schema.to_json(), "state": controller.state_dict()}, memory)
    return memory.getvalue()


def library_of(key: Key, config: Config) -> _C.Library:
    """The substitutions that a group may use: all of them, or the primitives only; drawn by key."""
    drawn = generator(*key.numbers(Purpose.LIBRARY)).random()
    return load_library(primitives_only=bool(drawn < config.primitives_share))


@dataclasses.dataclass(frozen=True)
class CandidateTask:
    """See `training.collectors.worker.Task`; its results are rollouts, None where a graph offers nothing.

    Attributes:
        config: everything that episodes depend on.
        prices: of the device.
    """

    config: Config
    prices: Prices = dataclasses.field(default_factory=Prices)

    def load(self, state: bytes) -> Callable[[Key], Rollout | None]:
        """A controller with these weights, and the groups that it plays."""
        library, cost, config = load_library(), cost_of(self.prices), self.config
        given = torch.load(io.BytesIO(state), weights_only=True)
        schema = Schema.from_json(given["schema"])
        controller = new_controller(library, controller_config(config), schema=schema)
        controller.load_state_dict(given["state"])
        controller.eval()  # embeddings of substitutions are computed once; nothing else changes

        def play(key: Key) -> Rollout | None:
            usable = library_of(key, config)
            rows = None
            if usable is not library:
                rows = torch.tensor([library.find(name) for name in usable.names])
            return play_group(CandidateChooser(controller, rows), usable, cost, key, config)

        return play
