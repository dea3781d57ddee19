"""A `CandidateController` as RLlib's module: policy and value for PPO, APPO and IMPALA, Q-values for DQN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ray.rllib.algorithms.dqn.default_dqn_rl_module import (
    QF_NEXT_PREDS,
    QF_PREDS,
    QF_TARGET_NEXT_PREDS,
)
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import (
    TARGET_NETWORK_ACTION_DIST_INPUTS,
    QNetAPI,
    TargetNetworkAPI,
    ValueFunctionAPI,
)
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.schedules.scheduler import Scheduler
from torch import Tensor

from torchrlopt.agent.observation import Observation
from torchrlopt.substitutions import load_library
from training.config import Config
from training.engines.unpadding import unpadded
from training.episodes.candidate_task import controller_config
from training.networks.candidate_controller import CandidateController, new_controller

_ILLEGAL = -1e6
"""The logit, and value, of an illegal action: finite, since RLlib multiplies it by a probability."""


class ControllerModule(TorchRLModule, ValueFunctionAPI, TargetNetworkAPI):
    """Policy and value. `model_config` has "config", the run's as JSON."""

    controller: CandidateController

    def setup(self) -> None:
        """See `RLModule`."""
        config = Config.from_json(self.model_config["config"])
        self.controller = new_controller(load_library(), controller_config(config), config.seed)

    def _forward(self, batch: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        seen = unpadded(batch[Columns.OBS])
        log_probs, _, _ = self.controller(seen)
        return {Columns.ACTION_DIST_INPUTS: _padded(log_probs, seen, batch[Columns.OBS])}

    def _forward_train(self, batch: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        seen = unpadded(batch[Columns.OBS])
        log_probs, _, value_logits = self.controller(seen)
        return {
            Columns.ACTION_DIST_INPUTS: _padded(log_probs, seen, batch[Columns.OBS]),
            Columns.EMBEDDINGS: self.controller.value.mean(value_logits),
        }

    def compute_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """See `ValueFunctionAPI`; the values themselves are passed on as embeddings."""
        if embeddings is not None:
            return embeddings
        return self.controller.value.mean(self.controller(unpadded(batch[Columns.OBS]))[2])

    def make_target_networks(self) -> None:
        """See `TargetNetworkAPI`."""
        self.target = make_target_network(self.controller)

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """See `TargetNetworkAPI`."""
        return [(self.controller, self.target)]

    def get_non_inference_attributes(self) -> list[str]:
        """What processes that only play do without."""
        return ["target"]

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See `TargetNetworkAPI`."""
        seen = unpadded(batch[Columns.OBS])
        logits = _padded(self.target(seen)[0], seen, batch[Columns.OBS])
        return {TARGET_NETWORK_ACTION_DIST_INPUTS: logits}


class QModule(ControllerModule, QNetAPI):
    """Q-values, from the same networks: the value plus the scorer's logits, in units of its greedy slope.

    Untrained, the advantage of a candidate is what it saves at once.
    """

    def setup(self) -> None:
        """See `RLModule`; the exploration is RLlib's, among legal actions."""
        super().setup()
        self.epsilon = Scheduler(fixed_value_or_schedule=self.model_config["epsilon"], framework="torch")

    def compute_q_values(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See `QNetAPI`."""
        return {QF_PREDS: _q_values(self.controller, batch[Columns.OBS])}

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """See `TargetNetworkAPI`."""
        return {QF_PREDS: _q_values(self.target, batch[Columns.OBS])}

    def _forward(self, batch: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: self.compute_q_values(batch)[QF_PREDS].argmax(1)}

    def _forward_exploration(self, batch: Mapping[str, Any], t: int, **_: Any) -> dict[str, Any]:
        best = self._forward(batch)[Columns.ACTIONS]
        self.epsilon.update(t)
        any_legal = torch.multinomial(batch[Columns.OBS]["action_mask"].float(), 1).squeeze(1)
        is_random = torch.rand(len(best)) < self.epsilon.get_current_value()
        return {Columns.ACTIONS: torch.where(is_random, any_legal, best)}

    def _forward_train(self, batch: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        following = {Columns.OBS: batch[Columns.NEXT_OBS]}
        return {
            QF_PREDS: self.compute_q_values(batch)[QF_PREDS],
            QF_NEXT_PREDS: self.compute_q_values(following)[QF_PREDS],
            QF_TARGET_NEXT_PREDS: self.forward_target(following)[QF_PREDS],
        }


def _q_values(controller: CandidateController, observation: Mapping[str, Tensor]) -> Tensor:
    """Return [B, K + 1]; `_ILLEGAL` where an action is not legal."""
    seen = unpadded(observation)
    log_probs, group, value_logits = controller(seen)
    stops = log_probs[len(seen.candidates) :]
    advantages = (log_probs - stops[group]) / controller.scorer.log_kappa.exp()
    return _padded(controller.value.mean(value_logits)[group] + advantages, seen, observation)


def _padded(values: Tensor, seen: Observation, observation: Mapping[str, Tensor]) -> Tensor:
    """Return [B, K + 1] from values [C + B] of candidates and stops; `_ILLEGAL` elsewhere."""
    count = len(seen.candidates)
    is_candidate = observation["substitutions"] >= 0
    of_candidates = values.new_full(is_candidate.shape, _ILLEGAL).masked_scatter(is_candidate, values[:count])
    return torch.cat([of_candidates, values[count:, None]], dim=1)
