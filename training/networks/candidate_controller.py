"""The controller that selects one of all candidates of a graph, and the `Policy` protocol.

The same PPO trains any `Policy`, in the real environment or in imagination.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchrlopt import _C
from torchrlopt.agent.networks.actions import Draw, squashed
from torchrlopt.agent.networks.encoder import mlp, segment_sum
from torchrlopt.agent.observation import Observation, Schema, collate
from torchrlopt.agent.undisturbed_torch import making_networks
from training.networks.encoders import ENCODERS
from training.networks.ragged import segment_argmax, segment_log_softmax, segment_max, segment_mean
from training.networks.substitution_encoder import SubstitutionEncoder, SubstitutionGraphs
from training.networks.value_head import ValueHead


@dataclasses.dataclass(frozen=True)
class Decision:
    """A policy's evaluation of actions.

    Attributes:
        log_prob: [B], log-probabilities of the actions.
        entropy: [B], of the distribution over legal actions.
        value: [B], expected return; for graphs, the further improvement as a fraction of the initial cost.
        value_logits: [B, K], input of `Value.loss`; for graphs, the bins of `ValueHead`.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    value_logits: Tensor


class Value(Protocol):
    """The training interface of a policy's value estimate."""

    def loss(self, logits: Tensor, values: Tensor) -> Tensor:
        """Return the loss [B] of estimates [B, K] given the observed returns [B]."""
        ...


class Policy(Protocol):
    """Chooses among legal actions. The type of states depends on the policy."""

    @property
    def value(self) -> Value:
        """The head that estimates returns."""
        ...

    def collate(self, states: Sequence[Any]) -> Any:
        """Collate several states into one batch."""
        ...

    def pick(self, states: Any, rows: Sequence[int]) -> list[Any]:
        """Return selected states of a batch, separately."""
        ...

    def size(self, state: Any) -> int:
        """Return the size of a state: its number of graph nodes, or 1. Minibatches are split by it."""
        ...

    def act(self, states: Any, draw: Draw) -> tuple[Tensor, Decision]:
        """Draw an action for each of B states; return the actions [B, ...] and their evaluation."""
        ...

    def evaluate(self, states: Any, actions: Tensor) -> Decision:
        """Evaluate actions that were drawn earlier in these states with the current policy."""
        ...


class CandidateScorer(nn.Module):
    """Computes a logit for every candidate and one for stop.

    logit = MLP(substitution | matched nodes | exact deltas | graph) - kappa * cost delta / first cost. The
    last layer of the MLP is initialised to zero, so the untrained scorer takes the candidate that saves most,
    and stops if none saves.

    Args:
        schema: the columns.
        width: W, width of node and graph embeddings.
        rule_width: D, width of substitution embeddings.
        hidden: width of the MLP.
        kappa: initial slope of the greedy part, which is learned.
    """

    is_delta: Tensor

    def __init__(
        self, schema: Schema, width: int, rule_width: int, hidden: int = 64, kappa: float = 100.0
    ) -> None:
        super().__init__()
        names = schema.columns["candidate"]
        self.schema = schema
        self.register_buffer(
            "is_delta", torch.tensor([name.endswith("_delta") for name in names]), persistent=False
        )
        # These four are the first layer of the MLP, split by input: the parts for substitutions and for
        # graphs are computed once per substitution and once per graph, not per candidate.
        self.from_rule = nn.Linear(rule_width, hidden)
        self.from_matched = nn.Linear(2 * width, hidden, bias=False)
        self.from_deltas = nn.Linear(len(names), hidden, bias=False)
        self.from_graph = nn.Linear(width, hidden, bias=False)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.stop = mlp(width + hidden + 1, hidden, 1)
        for net in (self.score, self.stop):
            last = net[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.log_kappa = nn.Parameter(torch.tensor(kappa, dtype=torch.float32).log())

    def forward(
        self, observation: Observation, nodes: Tensor, graphs: Tensor, rules: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score candidates and stop.

        Args:
            observation: B episodes with C candidates.
            nodes: [N, W], node embeddings.
            graphs: [B, W], graph embeddings.
            rules: [S, D], embeddings of the substitutions.

        Returns:
            Logits of the candidates [C] and of stop [B], and a summary of all candidates of each episode, [B,
            hidden + 1].
        """
        group, count = observation.candidate_episode, observation.num_episodes
        matched = nodes[observation.matched]
        owner, total = observation.matched_candidate, len(observation.candidates)
        pooled = torch.cat([segment_mean(matched, owner, total), segment_max(matched, owner, total)], dim=-1)
        features = self.schema.select(observation, "candidate")
        hidden = (
            self.from_rule(rules)[observation.substitutions]
            + self.from_matched(pooled)
            + self.from_deltas(torch.where(self.is_delta, squashed(features), features))
            + self.from_graph(graphs)[group]
        )
        delta = observation.column("candidate", "cost_delta")
        logits = self.score(hidden).squeeze(-1) - self.log_kappa.exp() * delta
        savings = segment_sum(delta.clamp(max=0).unsqueeze(-1), group, count)
        summary = torch.cat([segment_max(torch.relu(hidden), group, count), savings], dim=-1)
        return logits, self.stop(torch.cat([graphs, summary], dim=-1)).squeeze(-1), summary


@dataclasses.dataclass(frozen=True)
class ControllerConfig:
    """Sizes of a `CandidateController`.

    Attributes:
        encoder: a name in `training.networks.encoders.ENCODERS`.
        width: W, width of node and graph embeddings.
        rounds: rounds of message passing.
        rule_width: D, width of substitution embeddings.
        hidden: width of the MLPs.
        kappa: initial slope of the greedy part of the logits.
    """

    encoder: str = "local"
    width: int = 48
    rounds: int = 4
    rule_width: int = 32
    hidden: int = 64
    kappa: float = 100.0


class CandidateController(nn.Module):
    """Encoder, scorer and value: a policy over the candidates of real graphs.

    Args:
        schema: the columns.
        library: the substitutions.
        config: sizes of the networks.
    """

    def __init__(
        self, schema: Schema, library: SubstitutionGraphs, config: ControllerConfig | None = None
    ) -> None:
        super().__init__()
        config = config or ControllerConfig()
        self.schema = schema
        self.config = config
        self.library = library
        self.encoder = ENCODERS[config.encoder](schema, config.width, config.rounds)
        self.rules = SubstitutionEncoder(schema, out_width=config.rule_width)
        self.scorer = CandidateScorer(schema, config.width, config.rule_width, config.hidden, config.kappa)
        self.value = ValueHead(config.width + config.hidden + 1, config.hidden)
        self._embeddings: Tensor | None = None

    def train(self, mode: bool = True) -> CandidateController:
        """Set the mode. In evaluation mode, the embeddings of the library are cached."""
        self._embeddings = None
        super().train(mode)
        return self

    def embeddings(self) -> Tensor:
        """Return the embeddings of all substitutions, [S, D]."""
        if self.training or torch.is_grad_enabled():
            return self.rules(self.library)  # type: ignore[no-any-return]
        if self._embeddings is None:
            self._embeddings = self.rules(self.library)
        return self._embeddings

    def forward(self, states: Observation) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of all actions [C + B], their `action_groups`, and value logits [B, K]."""
        nodes, graphs = self.encoder(states)
        logits, stop, summary = self.scorer(states, nodes, graphs, self.embeddings())
        group = action_groups(states)
        log_probs = segment_log_softmax(torch.cat([logits, stop]), group, states.num_episodes)
        return log_probs, group, self.value(torch.cat([graphs, summary], dim=-1))

    def collate(self, states: Sequence[Observation]) -> Observation:
        """See `Policy`."""
        return collate(states)

    def pick(self, states: Observation, rows: Sequence[int]) -> list[Observation]:
        """See `Policy`."""
        return [states.episode(row) for row in rows]

    def size(self, state: Observation) -> int:
        """See `Policy`; the number of nodes."""
        return len(state.ops)

    def act(self, states: Observation, draw: Draw) -> tuple[Tensor, Decision]:
        """See `Policy`. Actions [B]: rows of the episode's candidates, or their number for stop."""
        log_probs, group, value_logits = self(states)
        counts = states.counts
        noise = draw((counts + 1).tolist())
        row = segment_argmax(log_probs + _stops_last(noise, states), group, states.num_episodes)
        is_stop = row >= len(states.candidates)
        actions = torch.where(is_stop, counts, row - states.candidate_offsets[:-1])
        return actions, self._decision(log_probs, group, value_logits, row)

    def evaluate(self, states: Observation, actions: Tensor) -> Decision:
        """See `Policy`."""
        log_probs, group, value_logits = self(states)
        return self._decision(log_probs, group, value_logits, action_rows(states, actions))

    def _decision(self, log_probs: Tensor, group: Tensor, value_logits: Tensor, row: Tensor) -> Decision:
        count = len(value_logits)
        entropy = -segment_sum(log_probs.exp() * log_probs, group, count)
        return Decision(log_probs[row], entropy, self.value.mean(value_logits), value_logits)


def new_controller(
    library: _C.Library,
    config: ControllerConfig | None = None,
    seed: int = 0,
) -> CandidateController:
    """Create an untrained controller: the start of training and the control in comparisons.

    Args:
        library: the substitutions that it scores.
        config: sizes of the networks.
        seed: seed of the weights.

    The global generator of torch is not changed.
    """
    schema = Schema.current()
    with making_networks(seed):
        return CandidateController(schema, SubstitutionGraphs.of(library, schema), config)


def action_groups(states: Observation) -> Tensor:
    """Return the episode of each action, [C + B]: all candidates, then the stop action of each episode."""
    return torch.cat([states.candidate_episode, torch.arange(states.num_episodes)])


def split_actions(states: Observation, rows: Tensor) -> list[Tensor]:
    """Split values of the rows of `action_groups` by episode: its candidates, then stop."""
    count = len(states.candidates)
    of_candidates = rows[:count].split(states.counts.tolist())
    return [torch.cat([each, stop[None]]) for each, stop in zip(of_candidates, rows[count:], strict=True)]


def join_actions(parts: Sequence[Tensor]) -> Tensor:
    """Invert `split_actions`."""
    return torch.cat([each[:-1] for each in parts] + [each[-1:] for each in parts])


def action_rows(states: Observation, actions: Tensor) -> Tensor:
    """Convert actions [B], numbered within their episode, to rows of `action_groups`."""
    stop = len(states.candidates) + torch.arange(states.num_episodes)
    return torch.where(actions == states.counts, stop, states.candidate_offsets[:-1] + actions)


def _stops_last(noise: Tensor, states: Observation) -> Tensor:
    """Reorder noise from per episode, with stop last in each, to the order of `action_groups`."""
    ends = states.candidate_offsets[1:] + torch.arange(states.num_episodes)
    is_stop = torch.zeros(len(noise), dtype=torch.bool)
    is_stop[ends] = True
    return torch.cat([noise[~is_stop], noise[is_stop]])
