"""World models, one interface: encode, step, imagine, loss.

A latent world has the graph embedding of a frozen encoder as its observation, and tells after each step the
next latent, the reward, whether the episode is over, which substitutions are legal, at how many locations and
what they save.
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

from torchrlopt.agent.networks.candidate_controller import Draw, Policy
from torchrlopt.agent.networks.encoder import mlp
from torchrlopt.agent.networks.two_stage_controller import MAX_LOCATIONS, LatentState, Legal
from torchrlopt.agent.rollout import Rollout, RolloutBuilder
from torchrlopt.agent.world.sequences import NUM_COSTS, Sequences

RARE = -3.0  # logit of what is seldom legal
KEPT = 6.0  # added where it was legal a step before
SAVING_SCALE = 10.0  # errors of savings are counted in tenths
FURTHEST = 5.0  # deviations at which features are cut: no graph may lie far from all that is known


@dataclasses.dataclass(frozen=True)
class WorldState:
    """Where B imagined episodes are.

    Attributes:
        z: [B, Z], latent.
        hidden: [B, H], what the recurrent network's heads read; 0 at the beginning of an episode.
        memory: the recurrent network's own state.
        legal: what may be done.
        situation: [B, 2 D], the same in brief; see `WorldModel.situation`.
        costs: [B, 2], cost and lowest cost so far, as shares of the first.
    """

    z: Tensor
    hidden: Tensor
    memory: tuple[Tensor, ...]
    legal: Legal
    situation: Tensor
    costs: Tensor

    def observed(self) -> LatentState:
        """What a controller sees."""
        features = torch.cat([self.z, self.hidden, self.situation], dim=-1)
        return LatentState(features, self.legal)

    def unless(self, rows: Tensor, other: WorldState) -> WorldState:
        """The same with the other's episodes where `rows` [B], bool, is true."""

        def mixed(mine: Tensor, others: Tensor) -> Tensor:
            return torch.where(rows.unsqueeze(-1), others, mine)

        names = (field.name for field in dataclasses.fields(Legal))
        return WorldState(
            mixed(self.z, other.z),
            mixed(self.hidden, other.hidden),
            tuple(map(mixed, self.memory, other.memory)),
            Legal(*(mixed(getattr(self.legal, name), getattr(other.legal, name)) for name in names)),
            mixed(self.situation, other.situation),
            mixed(self.costs, other.costs),
        )


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
    reward_slopes: Tensor
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
        self.register_buffer("reward_slopes", torch.zeros(3))
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
        return self.latent_width + self.hidden + 2 * self.rules.shape[1]

    @property
    def given_width(self) -> int:
        """Width of `given`."""
        return self.latent_width + 3 * self.rules.shape[1] + 3

    def fit_scales(self, sequences: Sequences) -> None:
        """Take from recorded episodes the scale of features, and how far costs alone tell rewards."""
        valid = sequences.valid
        seen = sequences.features[:, :-1][valid]
        self.feature_mean.copy_(seen.mean(0))
        self.feature_std.copy_(seen.std(0).clamp(min=1e-3))
        rewards = sequences.rewards[valid]
        falls = self.paid(sequences.costs[valid], sequences.taken[valid])[1]
        # By singular values: the falls are multiples of each other where every step has saved something.
        slopes = torch.linalg.lstsq(falls.double(), rewards.double().unsqueeze(-1), driver="gelsd").solution
        self.reward_slopes.copy_(slopes.squeeze(-1))
        rest = rewards - falls @ self.reward_slopes
        # Where nothing is left to learn, rounding is not to be learnt either.
        self.reward_std.copy_(torch.maximum(rest.std(), 0.01 * rewards.std()).clamp(min=1e-6))

    def standard(self, features: Tensor) -> Tensor:
        """Features [..., G] in deviations from their mean."""
        return ((features - self.feature_mean) / self.feature_std).clamp(-FURTHEST, FURTHEST)

    def paid(self, costs: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """What actions do that save `taken` [...], squashed, where costs were [..., 2].

        Returns:
            The costs then, and what falls [..., 3]: the cost by this step, the lowest cost by this step, the
            cost since the beginning. All rewards but those of memory are a sum of these.
        """
        saving = taken * taken.abs()
        cost = costs[..., 0] - saving
        lowest = torch.minimum(costs[..., 1], cost)
        falls = torch.stack([saving, costs[..., 1] - lowest, 1 - cost], dim=-1)
        return torch.stack([cost, lowest], dim=-1), falls

    def action_input(self, actions: Tensor) -> Tensor:
        """[..., D + 2]: embedding of the substitution, whether it is stop, and the rank, from [..., 2]."""
        substitution, rank = actions[..., 0], actions[..., 1]
        place = torch.log2(1 + rank.to(self.rules.dtype)) / 8
        stop = (substitution == self.num_substitutions).to(self.rules.dtype)
        return torch.cat([self.rules[substitution], place.unsqueeze(-1), stop.unsqueeze(-1)], dim=-1)

    def situation(self, legal: Legal) -> Tensor:
        """What is legal in brief, [..., 2 D].

        Embeddings of substitutions, summed by log2(1 + locations) / 8 and by savings.
        """
        mask = legal.mask[..., :-1]
        places = torch.log2(1.0 + legal.num_locations) * mask / 8
        return torch.cat([places @ self.rules[:-1], (legal.savings * mask) @ self.rules[:-1]], dim=-1)

    def given(self, z: Tensor, situation: Tensor, actions: Tensor, taken: Tensor) -> Tensor:
        """What the recurrent network reads, [..., Z + 3 D + 3]; `taken` [...] is what the actions save."""
        return torch.cat([z, situation, self.action_input(actions), taken.unsqueeze(-1)], dim=-1)

    def foretold(self, hidden: Tensor, before: Legal, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is legal after actions: logits, log2(1 + locations) and savings, [..., S] each.

        A step changes little of that: an action uses up its own location, and the heads say what else is new.

        Args:
            hidden: [..., H], after the actions.
            before: what was legal.
            actions: [..., 2].
        """
        used = F.one_hot(actions[..., 0], len(self.rules))[..., :-1]
        left = (before.num_locations - used).clamp(min=0)
        legal, log_counts, savings = self.rule_scores(hidden).unbind(-2)
        return (
            legal + RARE + self.kept * (left > 0),
            # What becomes legal does so at one location, as a rule.
            log_counts + torch.log2(1.0 + left.clamp(min=1)),
            savings / SAVING_SCALE + before.savings * before.mask[..., :-1],
        )

    @abc.abstractmethod
    def rule_scores(self, hidden: Tensor) -> Tensor:
        """Of legality, locations and savings of each substitution: [..., 3, S] from [..., H]."""

    @abc.abstractmethod
    def encode(self, features: Tensor) -> Tensor:
        """Latents [..., Z] of graph embeddings [..., G]."""

    @abc.abstractmethod
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
            generator: noise of the world.
            temperature: see the models.
            taken: [B], what the actions save, squashed, where it is known; else what the state says of their
                substitutions.
        """

    @abc.abstractmethod
    def loss(self, sequences: Sequences) -> dict[str, Tensor]:
        """Scalars by name, each a mean over real steps only; their sum is what training minimises."""

    @abc.abstractmethod
    def blank_memory(self, batch: int) -> tuple[Tensor, ...]:
        """The recurrent network's state at the beginning of an episode."""

    def start(self, features: Tensor, legal: Legal) -> WorldState:
        """Imagined episodes that begin at real graphs of features [B, G]. Nothing is remembered."""
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
        """After real actions [B, 2] that saved `taken` [B], with what was really seen then."""
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
        """Play a policy in the model; an episode that has ended begins anew where it began.

        Args:
            state: of `start`.
            policy: over latent states.
            horizon: steps.
            draw: noise of the policy.
            generator: noise of the world.
            temperature: see the models.
            doubt_penalty: times `Prediction.doubt` is taken off the reward.
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

    def _next(
        self,
        z: Tensor,
        hidden: Tensor,
        memory: tuple[Tensor, ...],
        before: WorldState,
        actions: Tensor,
        taken: Tensor,
        doubt: Tensor,
    ) -> tuple[WorldState, Prediction]:
        """What the heads say of the new latent."""
        logits, log_counts, savings = self.foretold(hidden, before.legal, actions)
        mask = logits > 0
        counts = torch.exp2(log_counts).sub(1).round().clamp(1, MAX_LOCATIONS).to(torch.int64)
        legal = Legal(F.pad(mask, (0, 1), value=True), counts * mask, savings.clamp(-1, 1))
        costs, falls = self.paid(before.costs, taken)
        state = WorldState(z, hidden, memory, legal, self.situation(legal), costs)
        reward = falls @ self.reward_slopes + self.reward_head(hidden).squeeze(-1) * self.reward_std
        done = self.done_head(hidden).squeeze(-1).sigmoid()
        return state, Prediction(reward, done, doubt)

    def _head_losses(self, hidden: Tensor, before: Legal, sequences: Sequences) -> dict[str, Tensor]:
        """Of reward, done, mask, counts and savings; `hidden` [V, H] and `before` of real steps only."""
        valid = sequences.valid
        mask_logits, log_counts, savings = self.foretold(hidden, before, sequences.actions[valid])
        after = sequences.legal((slice(None), slice(1, None))).at(valid)
        legal, counts = after.mask[:, :-1], after.num_locations.clamp(max=MAX_LOCATIONS)
        falls = self.paid(sequences.costs[valid], sequences.taken[valid])[1]
        reward = (sequences.rewards[valid] - falls @ self.reward_slopes) / self.reward_std
        over = sequences.terminated[valid].to(hidden.dtype)
        mask_loss = F.binary_cross_entropy_with_logits(mask_logits, legal.to(hidden.dtype), reduction="none")
        count_error = F.smooth_l1_loss(log_counts, torch.log2(1.0 + counts), reduction="none") * legal
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
