"""World models, one interface: encode, step, imagine, loss.

A latent world has the graph embedding of a frozen encoder as its observation, and tells after each step the
next latent, the reward, whether the episode is over, which substitutions are legal and at how many locations.
Nothing of the real environment is needed to imagine an episode.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.controller import Draw, Policy
from torchrlopt.agent.encoder import mlp
from torchrlopt.agent.rollout import Rollout, RolloutBuilder
from torchrlopt.agent.two_stage import MAX_LOCATIONS, LatentState

RARE = -3.0  # logit of what is seldom legal
KEPT = 6.0  # added where it was legal a step before


@dataclasses.dataclass(frozen=True)
class Sequences:
    """B recorded episodes of T steps, the short ones padded.

    Attributes:
        features: [B, T + 1, G], graph embeddings of the frozen encoder.
        actions: [B, T, 2], substitution (S for stop) and rank among its legal locations.
        rewards: [B, T].
        terminated: [B, T], bool.
        mask: [B, T + 1, S + 1], bool, stop last.
        num_locations: [B, T + 1, S].
        valid: [B, T], bool: a real step.
    """

    features: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    mask: Tensor
    num_locations: Tensor
    valid: Tensor

    def select(self, rows: Tensor) -> Sequences:
        """Some of the episodes."""
        return Sequences(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def padded(self, steps: int) -> Sequences:
        """The same with so many steps more that are none."""

        def grown(values: Tensor) -> Tensor:
            return torch.cat([values, values[:, -1:].repeat_interleave(steps, dim=1)], dim=1)

        more = Sequences(*(grown(getattr(self, field.name)) for field in dataclasses.fields(self)))
        return dataclasses.replace(more, valid=F.pad(self.valid, (0, steps)))


@dataclasses.dataclass(frozen=True)
class WorldState:
    """Where B imagined episodes are.

    Attributes:
        z: [B, Z], latent.
        hidden: [B, H], what the recurrent network's heads read; 0 at the beginning of an episode.
        memory: the recurrent network's own state.
        mask, num_locations: see `LatentState`.
        situation: [B, D], both of them in brief; see `WorldModel.situation`.
    """

    z: Tensor
    hidden: Tensor
    memory: tuple[Tensor, ...]
    mask: Tensor
    num_locations: Tensor
    situation: Tensor

    def observed(self) -> LatentState:
        """What a controller sees."""
        features = torch.cat([self.z, self.hidden, self.situation], dim=-1)
        return LatentState(features, self.mask, self.num_locations)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a step is expected to bring.

    Attributes:
        reward: [B].
        done: [B], probability that the episode is over.
        doubt: [B], disagreement of the model with itself; 0 where it has one opinion only.
    """

    reward: Tensor
    done: Tensor
    doubt: Tensor


class WorldModel(nn.Module, abc.ABC):
    """What all world models share.

    Args:
        feature_width: G.
        rules: [S, D], embeddings of the substitutions, frozen.
        latent_width: Z.
        hidden: H.
    """

    rules: Tensor
    feature_mean: Tensor
    feature_std: Tensor
    reward_std: Tensor

    def __init__(self, feature_width: int, rules: Tensor, latent_width: int, hidden: int) -> None:
        super().__init__()
        self.latent_width = latent_width
        self.hidden = hidden
        # Standardised, so that substitutions that say nearly the same are still told apart; stop is zero.
        standard = (rules - rules.mean(0)) / rules.std(0).clamp(min=1e-3)
        self.register_buffer("rules", torch.cat([standard.detach(), torch.zeros(1, rules.shape[1])]))
        self.register_buffer("feature_mean", torch.zeros(feature_width))
        self.register_buffer("feature_std", torch.ones(feature_width))
        self.register_buffer("reward_std", torch.ones(()))
        # Heads read the memory after the action and nothing else: it knows latent and action, and rewriting
        # is deterministic. A head that sees the true next latent leans on it, and fails on an imagined one.
        self.reward_head = mlp(hidden, hidden, 1)
        # How much likelier what was legal is to stay legal, as a logit; learnt.
        self.kept = nn.Parameter(torch.tensor(KEPT))
        self.done_head = mlp(hidden, 64, 1)

    @property
    def num_substitutions(self) -> int:
        """S."""
        return len(self.rules) - 1

    @property
    def state_width(self) -> int:
        """F, of `WorldState.observed`."""
        return self.latent_width + self.hidden + self.rules.shape[1]

    def fit_scales(self, sequences: Sequences) -> None:
        """Take means and deviations of features and rewards from recorded episodes."""
        seen = sequences.features[:, :-1][sequences.valid]
        self.feature_mean.copy_(seen.mean(0))
        self.feature_std.copy_(seen.std(0).clamp(min=1e-3))
        self.reward_std.copy_(sequences.rewards[sequences.valid].std().clamp(min=1e-6))

    def action_input(self, actions: Tensor) -> Tensor:
        """[..., D + 2]: embedding of the substitution, whether it is stop, and the rank, from [..., 2]."""
        substitution, rank = actions[..., 0], actions[..., 1]
        place = torch.log2(1 + rank.to(self.rules.dtype)) / 8
        stop = (substitution == self.num_substitutions).to(self.rules.dtype)
        return torch.cat([self.rules[substitution], place.unsqueeze(-1), stop.unsqueeze(-1)], dim=-1)

    def situation(self, mask: Tensor, num_locations: Tensor) -> Tensor:
        """What is legal in brief: [..., D], embeddings of substitutions summed by log2(1 + locations) / 8.

        Args:
            mask: [..., S + 1].
            num_locations: [..., S].
        """
        weights = torch.log2(1.0 + num_locations) * mask[..., :-1] / 8
        return weights @ self.rules[:-1]

    def given(self, z: Tensor, situation: Tensor, actions: Tensor) -> Tensor:
        """What the recurrent network reads, [..., Z + 2 D + 2]."""
        return torch.cat([z, situation, self.action_input(actions)], dim=-1)

    def carried(self, num_locations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """What is legal if an action uses up its own location and changes nothing else.

        A step changes little of what is legal; the heads say what.

        Args:
            num_locations: [..., S], before the action.
            actions: [..., 2].

        Returns:
            Addends of the mask's logits and of log2(1 + locations), [..., S] each.
        """
        used = F.one_hot(actions[..., 0], len(self.rules))[..., :-1]
        left = (num_locations - used).clamp(min=0)
        # What becomes legal does so at one location, as a rule.
        return self.kept * (left > 0), torch.log2(1.0 + left.clamp(min=1))

    @abc.abstractmethod
    def encode(self, features: Tensor) -> Tensor:
        """Latents [..., Z] of graph embeddings [..., G]."""

    @abc.abstractmethod
    def step(
        self, state: WorldState, actions: Tensor, generator: torch.Generator, temperature: float = 1.0
    ) -> tuple[WorldState, Prediction]:
        """Imagine what actions [B, 2] do."""

    @abc.abstractmethod
    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Scalars by name, each a mean over real steps only; their sum is what training minimises."""

    @abc.abstractmethod
    def blank_memory(self, batch: int) -> tuple[Tensor, ...]:
        """The recurrent network's state at the beginning of an episode."""

    def start(self, features: Tensor, mask: Tensor, num_locations: Tensor) -> WorldState:
        """Imagined episodes that begin at real graphs: [B, G], [B, S + 1], [B, S]. Nothing is remembered."""
        batch = len(features)
        blank = features.new_zeros(batch, self.hidden)
        memory = self.blank_memory(batch)
        situation = self.situation(mask, num_locations)
        return WorldState(self.encode(features), blank, memory, mask, num_locations, situation)

    def follow(
        self,
        state: WorldState,
        actions: Tensor,
        features: Tensor,
        mask: Tensor,
        num_locations: Tensor,
        generator: torch.Generator,
    ) -> WorldState:
        """After real actions [B, 2], with what was really seen then: the memory goes on."""
        imagined, _ = self.step(state, actions, generator)
        situation = self.situation(mask, num_locations)
        z = self.encode(features)
        return dataclasses.replace(imagined, z=z, mask=mask, num_locations=num_locations, situation=situation)

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
        """Play a policy in the model.

        Args:
            state: of `start`.
            policy: over latent states.
            horizon: most steps.
            draw: noise of the policy.
            generator: noise of the world.
            temperature: see the models.
            doubt_penalty: times `Prediction.doubt` is taken off the reward.
        """
        builder = RolloutBuilder(len(state.z))
        with torch.no_grad():
            for _ in range(horizon):
                seen = state.observed()
                actions, decision = policy.act(seen, draw)
                state, told = self.step(state, actions, generator, temperature)
                is_stop = actions[:, 0] == self.num_substitutions
                reward = torch.where(is_stop, 0.0, told.reward - doubt_penalty * told.doubt)
                done = is_stop | (told.done > 0.5)
                builder.add(seen, actions, decision.log_prob, decision.value, reward, done, done)
                if not builder.alive.any():
                    break
            last = policy.act(state.observed(), draw)[1].value
        return builder.finish(last)

    def _next(
        self,
        z: Tensor,
        hidden: Tensor,
        memory: tuple[Tensor, ...],
        mask_logits: Tensor,
        log_counts: Tensor,
        doubt: Tensor,
    ) -> tuple[WorldState, Prediction]:
        """What the heads say of the new latent."""
        mask = mask_logits > 0
        counts = torch.exp2(log_counts).sub(1).round().clamp(1, MAX_LOCATIONS).to(torch.int64)
        stop = mask.new_ones(len(mask), 1)
        mask, counts = torch.cat([mask, stop], dim=1), counts * mask
        state = WorldState(z, hidden, memory, mask, counts, self.situation(mask, counts))
        reward = self.reward_head(hidden).squeeze(-1) * self.reward_std
        done = self.done_head(hidden).squeeze(-1).sigmoid()
        return state, Prediction(reward, done, doubt)

    def _head_losses(
        self, hidden: Tensor, mask_logits: Tensor, log_counts: Tensor, sequences: Sequences
    ) -> dict[str, Tensor]:
        """Of reward, done, mask and counts; `hidden` [V, H] and logits [V, S] of real steps only."""
        valid = sequences.valid
        legal = sequences.mask[:, 1:, :-1][valid]
        counts = sequences.num_locations[:, 1:][valid].clamp(max=MAX_LOCATIONS)
        reward = sequences.rewards[valid] / self.reward_std
        over = sequences.terminated[valid].to(hidden.dtype)
        mask_loss = F.binary_cross_entropy_with_logits(mask_logits, legal.to(hidden.dtype), reduction="none")
        count_error = F.smooth_l1_loss(log_counts, torch.log2(1.0 + counts), reduction="none") * legal
        return {
            "reward": F.smooth_l1_loss(self.reward_head(hidden).squeeze(-1), reward),
            "done": F.binary_cross_entropy_with_logits(self.done_head(hidden).squeeze(-1), over),
            "mask": mask_loss.sum(-1).mean() / math.sqrt(self.num_substitutions),
            "count": count_error.sum(-1).mean(),
        }


def total(losses: Mapping[str, Tensor]) -> Tensor:
    """The sum that training minimises."""
    return torch.stack(list(losses.values())).sum()
