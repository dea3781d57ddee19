"""Base class of world models, which predict the effects of rewriting so that a policy can train in them.

A world model never sees a graph: a frozen encoder embeds each graph, and the model works on a latent vector
computed from that embedding. Given the latent and an action (a substitution at a location), it predicts the
next latent, the reward, whether the episode is over, which substitutions can be applied next, at how many
locations, and how much they save. `imagine` plays whole episodes on these predictions, without the real
environment.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.actions import MAX_LOCATIONS, Draw, Legal, squashed
from torchrlopt.agent.networks.encoder import mlp
from torchrlopt.agent.networks.memory import StepInputs
from training.networks.candidate_controller import Policy
from training.rollout import Rollout, RolloutBuilder
from training.world.sequences import NUM_COSTS, Sequences
from training.world.world_state import Prediction, WorldState

# Legality seldom changes in a step: a substitution that was illegal mostly stays illegal, and a legal one
# mostly stays legal. So the predicted logit of "can be applied" starts from RARE or RARE + KEPT.
RARE = -3.0
KEPT = 6.0
# Savings are fractions of the initial cost, mostly below a tenth. This scale gives them the same weight in
# the loss as the other predictions.
SAVING_SCALE = 10.0


class WorldModel(StepInputs, abc.ABC):
    """The predictions shared by all world models; subclasses define the latent and the recurrent network.

    Args:
        feature_width: G, width of the features of a graph: its embedding, then its two costs.
        rules: [S, D], embeddings of the substitutions, not trained here.
        latent_width: Z, width of the latent.
        hidden: H, width of the recurrent network.
    """

    reward_slopes: Tensor
    reward_std: Tensor

    def __init__(self, feature_width: int, rules: Tensor, latent_width: int, hidden: int) -> None:
        super().__init__(feature_width, rules, latent_width, hidden)
        self.register_buffer("reward_slopes", torch.zeros(3))
        self.register_buffer("reward_std", torch.ones(()))
        # Reward and termination are predicted from `hidden` after the action only. That suffices: rewriting
        # is deterministic, and `hidden` was computed from latent and action. If they also read the next
        # latent, they would rely on it, but it is the true one in training and a sampled one in imagination,
        # where the predictions would then be wrong.
        self.reward_head = mlp(hidden, hidden, 1)
        # Learned, initialised to KEPT.
        self.kept = nn.Parameter(torch.tensor(KEPT, dtype=torch.float32))
        self.done_head = mlp(hidden, 64, 1)

    def fit_scales(self, sequences: Sequences) -> None:
        """Fit the scale of the features and the arithmetic part of the reward to recorded episodes.

        Most rewards are functions of costs, and the costs after a step follow from the saving of the action.
        A least-squares fit of the recorded rewards on the cost decreases (see `pay`) determines that part;
        the network predicts only the rest.
        """
        valid = sequences.valid
        seen = sequences.features[:, :-1][valid]
        self.feature_mean.copy_(seen.mean(0))
        self.feature_std.copy_(seen.std(0).clamp(min=1e-3))
        rewards = sequences.rewards[valid]
        falls = self.pay(sequences.costs[valid], sequences.taken[valid])[1]
        # If every recorded step saved something, two of the three regressors are equal and a plain solver
        # would divide by zero; "gelsd" (SVD) returns the minimum-norm solution.
        slopes = torch.linalg.lstsq(falls.double(), rewards.double().unsqueeze(-1), driver="gelsd").solution
        self.reward_slopes.copy_(slopes.squeeze(-1))
        rest = rewards - falls @ self.reward_slopes
        # A tiny residual is rounding noise; do not scale it up to unit variance and learn it.
        self.reward_std.copy_(torch.maximum(rest.std(), 0.01 * rewards.std()).clamp(min=1e-6))

    def pay(self, costs: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the costs after actions, by arithmetic.

        Args:
            costs: [..., 2], cost and lowest cost before the actions.
            taken: [...], savings of the actions, squashed (`actions.squashed`).

        Returns:
            The two costs after the actions, [..., 2], and three decreases, [..., 3]: of the cost in this
            step, of the lowest cost in this step, and of the cost since the beginning. Every reward that
            ignores memory traffic is a weighted sum of these.
        """
        saving = taken * taken.abs()  # undoes the squashing
        cost = costs[..., 0] - saving
        lowest = torch.minimum(costs[..., 1], cost)
        falls = torch.stack([saving, costs[..., 1] - lowest, 1 - cost], dim=-1)
        return torch.stack([cost, lowest], dim=-1), falls

    def predict_legal(self, hidden: Tensor, before: Legal, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Predict which substitutions can be applied after actions.

        A step changes little, so the prediction is what was legal before, minus the location used by the
        action, plus a learned correction for each substitution. With macros, a class of locations is one
        location of another kind, and the correction must account for the losses of both.

        Args:
            hidden: [..., H], network output after the actions.
            before: legal actions before them.
            actions: [..., 2], the actions.

        Returns:
            For each substitution, [..., S] each: the logit of "can be applied", log2(1 + locations), and its
            saving, squashed.
        """
        used = F.one_hot(actions[..., 0], len(self.rules))[..., :-1]
        left = (before.num_locations - used).clamp(min=0)
        legal, log_counts, savings = self.rule_scores(hidden).unbind(-2)
        return (
            legal + RARE + self.kept * (left > 0),
            # A substitution mostly becomes legal at one location: hence at least 1.
            log_counts + torch.log2(1 + left.clamp(min=1).to(self.rules.dtype)),
            savings / SAVING_SCALE + before.savings * before.mask[..., :-1],
        )

    @abc.abstractmethod
    def rule_scores(self, hidden: Tensor) -> Tensor:
        """Return corrections for `predict_legal`, [..., 3, S] from [..., H]: legality, locations, savings."""

    @abc.abstractmethod
    def encode(self, features: Tensor) -> Tensor:
        """Encode features of real graphs [..., G] as latents [..., Z]."""

    @abc.abstractmethod
    def advance(
        self, state: WorldState, inputs: Tensor, generator: torch.Generator, temperature: float
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """Advance the recurrent network by one step and sample the next latent.

        Args:
            state: the state before the step.
            inputs: [B, I], from `inputs`.
            generator: random generator for the latent.
            temperature: randomness of the sampled latent; each model defines its effect.

        Returns:
            The next latent [B, Z], the network's output [B, H], its new memory, and the doubt [B].
        """

    def step(
        self,
        state: WorldState,
        actions: Tensor,
        generator: torch.Generator,
        temperature: float = 1.0,
        taken: Tensor | None = None,
    ) -> tuple[WorldState, Prediction]:
        """Imagine the effects of actions [B, 2].

        Args:
            state: the state before the actions.
            actions: legal actions.
            generator: random generator for the next latent.
            temperature: see `advance`.
            taken: [B], savings of the actions, squashed, if known (real actions); None uses the savings of
                their substitutions in `state`.
        """
        # Clamp the predicted saving, so that no graph has a negative cost.
        predicted = torch.minimum(state.legal.saving_of(actions), squashed(state.costs[..., 0].clamp(min=0)))
        saved = predicted if taken is None else taken
        inputs = self.inputs(state.z, state.situation, actions, saved)
        z, hidden, memory, doubt = self.advance(state, inputs, generator, temperature)
        logits, log_counts, savings = self.predict_legal(hidden, state.legal, actions)
        mask = logits > 0
        counts = torch.exp2(log_counts).sub(1).round().clamp(1, MAX_LOCATIONS).to(torch.int64)
        legal = Legal(F.pad(mask, (0, 1), value=True), counts * mask, savings.clamp(-1, 1))
        costs, falls = self.pay(state.costs, saved)
        reward = falls @ self.reward_slopes + self.reward_head(hidden).squeeze(-1) * self.reward_std
        done = self.done_head(hidden).squeeze(-1).sigmoid()
        after = WorldState(z, hidden, memory, legal, self.situation(legal), costs)
        return after, Prediction(reward, done, doubt)

    @abc.abstractmethod
    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Return losses by name, each a mean over real steps (no padding); training minimises their sum."""

    @abc.abstractmethod
    def blank_memory(self, batch: int) -> tuple[Tensor, ...]:
        """Return `WorldState.memory` for the beginning of an episode."""

    def start(self, features: Tensor, legal: Legal) -> WorldState:
        """Return the initial state of episodes that begin at real graphs with features [B, G]."""
        batch = len(features)
        blank = features.new_zeros(batch, self.hidden)
        memory = self.blank_memory(batch)
        costs = features[:, -NUM_COSTS:]
        return WorldState(self.encode(features), blank, memory, legal, self.situation(legal), costs)

    def follow(
        self,
        state: WorldState,
        actions: Tensor,
        taken: Tensor,
        features: Tensor,
        legal: Legal,
        generator: torch.Generator,
    ) -> WorldState:
        """Return the state after real actions [B, 2] with savings `taken` [B].

        The recurrent network makes its step as in imagination, but latent, legality and costs are taken from
        the resulting real graphs instead of the predictions.
        """
        imagined, _ = self.step(state, actions, generator, taken=taken)
        return dataclasses.replace(
            imagined,
            z=self.encode(features),
            legal=legal,
            situation=self.situation(legal),
            costs=features[:, -NUM_COSTS:],
        )

    def imagine(
        self,
        state: WorldState,
        policy: Policy,
        horizon: int,
        draw: Draw,
        generator: torch.Generator,
        temperature: float = 1.0,
        doubt_penalty: float = 0.0,
    ) -> Rollout:
        """Let a policy play in the model. An episode that ends restarts from its initial state.

        Args:
            state: initial state of the episodes, from `start`.
            policy: the policy.
            horizon: number of steps.
            draw: random numbers for the policy.
            generator: random generator for the model.
            temperature: see `advance`.
            doubt_penalty: penalty on the reward per unit of `Prediction.doubt`, so that the policy does not
                exploit states in which the model is uncertain.
        """
        first = state
        builder = RolloutBuilder(len(state.z), begins_anew=True)
        with torch.no_grad():
            for _ in range(horizon):
                seen = state.observed()
                actions, decision = policy.act(seen, draw)
                state, told = self.step(state, actions, generator, temperature)
                is_stop = actions[:, 0] == self.num_substitutions
                reward = torch.where(is_stop, 0.0, told.reward - doubt_penalty * told.doubt)
                done = is_stop | (told.done > 0.5)
                builder.add(seen, actions, decision.log_prob, decision.value, reward, done, done)
                state = state.unless(done, first)
            last = policy.act(state.observed(), draw)[1].value
        return builder.finish(last)

    def _head_losses(self, hidden: Tensor, before: Legal, sequences: Sequences) -> dict[str, Tensor]:
        """Return the losses of the predictions shared by all models.

        Args:
            hidden: [V, H], network output after the actions of the V real steps in the sequences.
            before: legal actions before these steps.
            sequences: the recorded episodes.
        """
        valid = sequences.valid
        mask_logits, log_counts, savings = self.predict_legal(hidden, before, sequences.actions[valid])
        after = sequences.legal((slice(None), slice(1, None))).at(valid)
        legal, counts = after.mask[:, :-1], after.num_locations.clamp(max=MAX_LOCATIONS)
        falls = self.pay(sequences.costs[valid], sequences.taken[valid])[1]
        reward = (sequences.rewards[valid] - falls @ self.reward_slopes) / self.reward_std
        over = sequences.terminated[valid].to(hidden.dtype)
        mask_loss = F.binary_cross_entropy_with_logits(mask_logits, legal.to(hidden.dtype), reduction="none")
        told = torch.log2(1 + counts.to(log_counts.dtype))
        count_error = F.smooth_l1_loss(log_counts, told, reduction="none") * legal
        tenths = SAVING_SCALE * savings, SAVING_SCALE * after.savings
        saving_error = F.smooth_l1_loss(*tenths, reduction="none") * legal
        return {
            "reward": F.smooth_l1_loss(self.reward_head(hidden).squeeze(-1), reward),
            "done": F.binary_cross_entropy_with_logits(self.done_head(hidden).squeeze(-1), over),
            "mask": mask_loss.sum(-1).mean() / math.sqrt(self.num_substitutions),
            "count": count_error.sum(-1).mean(),
            "saving": saving_error.sum(-1).mean(),
        }


def total(losses: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the losses, which training minimises."""
    return torch.stack(list(losses.values())).sum()
