"""What all world models share. A world model predicts what rewriting does, so that a policy can train in it.

It never sees a graph: a frozen encoder turns each graph into an embedding, and the model works on a latent
vector made of that embedding. Given the latent and an action (a substitution at a location) it predicts the
next latent, the reward, whether the episode is over, which substitutions can be applied then, at how many
locations, and how much cost they save. `imagine` plays whole episodes on such predictions; the real
environment takes no part in them.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchrlopt.agent.networks.candidate_controller import Draw, Policy
from torchrlopt.agent.networks.encoder import mlp
from torchrlopt.agent.networks.two_stage_controller import MAX_LOCATIONS, Legal, squashed
from torchrlopt.agent.rollout import Rollout, RolloutBuilder
from torchrlopt.agent.world.sequences import NUM_COSTS, Sequences
from torchrlopt.agent.world.world_state import Prediction, WorldState

# A substitution that could not be applied before a step can seldom be applied after it, one that could mostly
# still can: the predicted logit of "can be applied" begins at RARE, or at RARE + KEPT.
RARE = -3.0
KEPT = 6.0
# Savings are shares of the first cost, mostly below a tenth. Multiplied by this they weigh as much in the
# loss as the other predictions.
SAVING_SCALE = 10.0
# Standardised features are cut off at this many standard deviations, so that a graph unlike all graphs of the
# training does not drive the networks far outside of what they know.
FURTHEST = 5.0


class WorldModel(nn.Module, abc.ABC):
    """The predictions that all world models make alike; subclasses choose latent and recurrent network.

    Args:
        feature_width: G, width of what is seen of a graph: its embedding, at the end its two costs.
        rules: [S, D], embeddings of the substitutions; they are not trained here.
        latent_width: Z.
        hidden: H, width of the recurrent network.
    """

    rules: Tensor
    feature_mean: Tensor
    feature_std: Tensor
    reward_slopes: Tensor
    reward_std: Tensor

    def __init__(self, feature_width: int, rules: Tensor, latent_width: int, hidden: int) -> None:
        super().__init__()
        self.latent_width = latent_width
        self.hidden = hidden
        # The embeddings of similar substitutions differ little. Standardising each column over all
        # substitutions makes the differences large enough to be read. The last row, zeros, stands for stop.
        standard = (rules - rules.mean(0)) / rules.std(0).clamp(min=1e-3)
        self.register_buffer("rules", torch.cat([standard.detach(), torch.zeros(1, rules.shape[1])]))
        self.register_buffer("feature_mean", torch.zeros(feature_width))
        self.register_buffer("feature_std", torch.ones(feature_width))
        self.register_buffer("reward_slopes", torch.zeros(3))
        self.register_buffer("reward_std", torch.ones(()))
        # Reward and end are predicted from `hidden` after the action alone. That is enough: rewriting is
        # deterministic, and `hidden` was computed from latent and action. If they were predicted from the
        # next latent too, they would come to rely on it: in training it is the true one, in imagination a
        # drawn one, and there they would be wrong.
        self.reward_head = mlp(hidden, hidden, 1)
        # See KEPT: where it begins, it is learned.
        self.kept = nn.Parameter(torch.tensor(KEPT, dtype=torch.float32))
        self.done_head = mlp(hidden, 64, 1)

    @property
    def num_substitutions(self) -> int:
        """S, kinds of steps: see `latent_controller.kinds_of`."""
        return len(self.rules) - 1

    @property
    def state_width(self) -> int:
        """F, of `WorldState.observed`."""
        return self.latent_width + self.hidden + 2 * self.rules.shape[1]

    @property
    def input_width(self) -> int:
        """Width of `inputs`."""
        return self.latent_width + 3 * self.rules.shape[1] + 3

    def fit_scales(self, sequences: Sequences) -> None:
        """Set from recorded episodes the scale of features, and the part of the reward that is arithmetic.

        Most rewards are made of costs, and what a step does to the costs follows from what the action saves.
        A least-squares fit of the recorded rewards on the falls of the costs (see `pay`) finds that part; the
        network has to predict the rest only.
        """
        valid = sequences.valid
        seen = sequences.features[:, :-1][valid]
        self.feature_mean.copy_(seen.mean(0))
        self.feature_std.copy_(seen.std(0).clamp(min=1e-3))
        rewards = sequences.rewards[valid]
        falls = self.pay(sequences.costs[valid], sequences.taken[valid])[1]
        # Where every recorded step saved something, two of the three falls are equal, and a plain solver
        # would divide by zero; "gelsd" (singular values) takes the smallest of all solutions.
        slopes = torch.linalg.lstsq(falls.double(), rewards.double().unsqueeze(-1), driver="gelsd").solution
        self.reward_slopes.copy_(slopes.squeeze(-1))
        rest = rewards - falls @ self.reward_slopes
        # Where nearly nothing is left, it is rounding, which is not to be blown up to unit size and learned.
        self.reward_std.copy_(torch.maximum(rest.std(), 0.01 * rewards.std()).clamp(min=1e-6))

    def standard(self, features: Tensor) -> Tensor:
        """Features [..., G] in standard deviations from their mean, cut off at FURTHEST."""
        return ((features - self.feature_mean) / self.feature_std).clamp(-FURTHEST, FURTHEST)

    def pay(self, costs: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """What actions do to costs, by arithmetic.

        Args:
            costs: [..., 2], cost and lowest cost before the actions.
            taken: [...], what the actions save, squashed (`two_stage_controller.squashed`).

        Returns:
            The two costs after the actions, [..., 2], and three differences, [..., 3]: by how much the step
            lowered the cost, by how much it lowered the lowest cost, and how much lower the cost is now than
            in the beginning. Every reward that does not look at memory traffic is a weighted sum of these.
        """
        saving = taken * taken.abs()  # undoes the squashing
        cost = costs[..., 0] - saving
        lowest = torch.minimum(costs[..., 1], cost)
        falls = torch.stack([saving, costs[..., 1] - lowest, 1 - cost], dim=-1)
        return torch.stack([cost, lowest], dim=-1), falls

    def action_input(self, actions: Tensor) -> Tensor:
        """Actions [..., 2] as vectors [..., D + 2]: embedding of the substitution, rank, is it stop."""
        substitution, rank = actions[..., 0], actions[..., 1]
        place = torch.log2(1 + rank.to(self.rules.dtype)) / 8
        stop = (substitution == self.num_substitutions).to(self.rules.dtype)
        return torch.cat([self.rules[substitution], place.unsqueeze(-1), stop.unsqueeze(-1)], dim=-1)

    def situation(self, legal: Legal) -> Tensor:
        """What is legal, as a vector of fixed size, [..., 2 D].

        Two weighted sums of the embeddings of the substitutions that can be applied: one with
        log2(1 + number of locations) / 8 as weights, one with what they save.
        """
        mask = legal.mask[..., :-1]
        places = torch.log2(1 + legal.num_locations.to(self.rules.dtype)) * mask / 8
        return torch.cat([places @ self.rules[:-1], (legal.savings * mask) @ self.rules[:-1]], dim=-1)

    def inputs(self, z: Tensor, situation: Tensor, actions: Tensor, taken: Tensor) -> Tensor:
        """What the recurrent network reads in a step, [..., I]; `taken` [...] is what the actions save."""
        return torch.cat([z, situation, self.action_input(actions), taken.unsqueeze(-1)], dim=-1)

    def predict_legal(self, hidden: Tensor, before: Legal, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Predict which substitutions can be applied after actions.

        A step changes little of that. So the prediction is: what was legal before, less the location that the
        action itself used up, plus a correction that the network computes for each substitution. With macros
        a class of places is one location of another kind, and the correction has to hold what both lose.

        Args:
            hidden: [..., H], after the actions.
            before: what was legal before them.
            actions: [..., 2].

        Returns:
            For each substitution, [..., S] each: the logit of "can be applied", log2(1 + locations), and what
            it saves, squashed.
        """
        used = F.one_hot(actions[..., 0], len(self.rules))[..., :-1]
        left = (before.num_locations - used).clamp(min=0)
        legal, log_counts, savings = self.rule_scores(hidden).unbind(-2)
        return (
            legal + RARE + self.kept * (left > 0),
            # A substitution that becomes legal does so at one location, mostly: hence at least 1.
            log_counts + torch.log2(1 + left.clamp(min=1).to(self.rules.dtype)),
            savings / SAVING_SCALE + before.savings * before.mask[..., :-1],
        )

    @abc.abstractmethod
    def rule_scores(self, hidden: Tensor) -> Tensor:
        """The corrections of `predict_legal`, [..., 3, S] from [..., H]: of legality, locations, savings."""

    @abc.abstractmethod
    def encode(self, features: Tensor) -> Tensor:
        """Latents [..., Z] of what is seen of real graphs, [..., G]."""

    @abc.abstractmethod
    def advance(
        self, state: WorldState, inputs: Tensor, generator: torch.Generator, temperature: float
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]:
        """Let the recurrent network make one step, and draw the next latent.

        Args:
            state: before the step.
            inputs: [B, I], from `inputs`.
            generator: what the latent is drawn with.
            temperature: how random the drawn latent is; each model says what it does with it.

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
        """Imagine what actions [B, 2] do.

        Args:
            state: before them.
            actions: legal ones.
            generator: what the next latent is drawn with.
            temperature: see `advance`.
            taken: [B], what the actions save, squashed, where that is known (real actions); where it is None,
                what the state says of their substitutions is used.
        """
        # No graph costs less than nothing, however much is predicted to be saved.
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
        """Losses by name, each a mean over real steps (padding left out); training minimises their sum."""

    @abc.abstractmethod
    def blank_memory(self, batch: int) -> tuple[Tensor, ...]:
        """`WorldState.memory` at the beginning of an episode."""

    def start(self, features: Tensor, legal: Legal) -> WorldState:
        """The state of episodes that begin at real graphs, of which features [B, G] are seen."""
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
        """The state after real actions [B, 2] that saved `taken` [B].

        The recurrent network makes its step as in imagination, but latent, legality and costs are those of
        the real graphs that came out, and not what is predicted of them.
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
        """Let a policy play in the model. An episode that ends begins again in the state where it began.

        Args:
            state: where the episodes begin, from `start`.
            policy: chooses the actions.
            horizon: number of steps.
            draw: random numbers of the policy.
            generator: random numbers of the world.
            temperature: see `advance`.
            doubt_penalty: so much for each unit of `Prediction.doubt` is taken off the reward, so that the
                policy gains nothing from places of which the model knows little.
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
        """Losses of the predictions that all models make alike.

        Args:
            hidden: [V, H], after the actions of the V real steps in the sequences.
            before: what was legal before these steps.
            sequences: what really happened.
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
    """The sum that training minimises."""
    return torch.stack(list(losses.values())).sum()
