"""The controller that points at one of all candidates of a graph, and what every controller is: `Policy`.

One PPO trains any `Policy`, in the real environment or in imagination.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torchrlopt.agent.networks.encoder import ENCODERS, mlp
from torchrlopt.agent.networks.ragged import (
    segment_argmax,
    segment_log_softmax,
    segment_max,
    segment_mean,
    segment_sum,
)
from torchrlopt.agent.networks.substitution_encoder import SubstitutionEncoder, SubstitutionGraphs
from torchrlopt.agent.networks.value_head import ValueHead
from torchrlopt.agent.observation import Observation, Schema, collate

#: Gumbel noise for groups of these sizes, one after another: [sum of sizes]. Zeros give the likeliest action.
Draw = Callable[[Sequence[int]], Tensor]


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a policy says of actions that were taken.

    Attributes:
        log_prob: [B].
        entropy: [B], of the distribution over legal actions.
        value: [B], expected return; of graphs, the further improvement as a fraction of the first cost.
        value_logits: [B, K], what `Value.loss` takes; of graphs, the bins of `ValueHead`.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    value_logits: Tensor


class Value(Protocol):
    """How a policy's estimate of the return is learnt."""

    def loss(self, logits: Tensor, values: Tensor) -> Tensor:
        """Of each estimate [B, K], given what came out [B]: [B]."""
        ...


class Policy(Protocol):
    """Chooses among legal actions. What a state is, each policy says for itself."""

    @property
    def value(self) -> Value:
        """The head that estimates returns."""
        ...

    def collate(self, states: Sequence[Any]) -> Any:
        """Several states as one batch."""
        ...

    def pick(self, states: Any, rows: Sequence[int]) -> list[Any]:
        """Some states of a batch, each by itself."""
        ...

    def size(self, state: Any) -> int:
        """How large a state is: its graph nodes, or 1; minibatches are cut by this."""
        ...

    def act(self, states: Any, draw: Draw) -> tuple[Tensor, Decision]:
        """Draw an action for each of B states: actions [B, ...]."""
        ...

    def evaluate(self, states: Any, actions: Tensor) -> Decision:
        """What the policy now says of actions that it drew before in these states."""
        ...


class Guide(Protocol):
    """Says where a search should look first; plain tensors of the CPU, no gradients."""

    @property
    def num_substitutions(self) -> int:
        """Of the library that it rates."""
        ...

    def rate(self, states: Observation) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the candidates [C], and what each episode will still gain [B]."""
        ...


def no_noise(sizes: Sequence[int]) -> Tensor:
    """A `Draw` for the likeliest action."""
    return torch.zeros(sum(sizes), dtype=torch.float32)


def _squashed(features: Tensor, is_delta: Tensor) -> Tensor:
    """Signed square roots of the columns that are differences: fractions of a whole graph, mostly tiny."""
    return torch.where(is_delta, features.sign() * features.abs().sqrt(), features)


class CandidateScorer(nn.Module):
    """A logit for every candidate and one for stop.

    logit = MLP(substitution | matched nodes | exact deltas | graph) - kappa * cost delta / first cost. The
    last layer of the MLP begins at zero, so the untrained scorer takes the candidate that saves most, and
    stops where none saves.

    Args:
        schema: the columns.
        width: of node and graph embeddings.
        rule_width: D, of substitution embeddings.
        hidden: width of the MLP.
        kappa: initial slope of the greedy part; it is learned.
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
        # These four are the first layer of the MLP, split by what they read: the part for substitutions is
        # computed once for each substitution, that for graphs once for each graph, not for each candidate.
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
        """Score.

        Args:
            observation: B episodes with C candidates.
            nodes: [N, W].
            graphs: [B, W].
            rules: [S, D], embeddings of the substitutions.

        Returns:
            Logits of the candidates [C] and of stop [B], and what all candidates of an episode look like
            together, [B, hidden + 1].
        """
        group, count = observation.candidate_episode, observation.num_episodes
        matched = nodes[observation.matched]
        owner, total = observation.matched_candidate, len(observation.candidates)
        pooled = torch.cat([segment_mean(matched, owner, total), segment_max(matched, owner, total)], dim=-1)
        features = self.schema.select(observation, "candidate")
        hidden = (
            self.from_rule(rules)[observation.substitutions]
            + self.from_matched(pooled)
            + self.from_deltas(_squashed(features, self.is_delta))
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
        encoder: a name in `torchrlopt.agent.networks.encoder.ENCODERS`.
        width: W, of nodes and graphs.
        rounds: of message passing.
        rule_width: D, of substitutions.
        hidden: of the MLPs.
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
        library: the substitutions; `use_library` exchanges it later.
        config: sizes.
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

    def use_library(self, library: SubstitutionGraphs) -> None:
        """Score the substitutions of another library from now on."""
        self.library = library
        self._embeddings = None

    def train(self, mode: bool = True) -> CandidateController:
        """In evaluation mode the embeddings of the library are computed once."""
        self._embeddings = None
        super().train(mode)
        return self

    def embeddings(self) -> Tensor:
        """Of all substitutions, [S, D]."""
        if self.training or torch.is_grad_enabled():
            return self.rules(self.library)  # type: ignore[no-any-return]
        if self._embeddings is None:
            self._embeddings = self.rules(self.library)
        return self._embeddings

    def forward(self, states: Observation) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of the rows of `action_groups` [C + B], those groups, value logits [B, K]."""
        nodes, graphs = self.encoder(states)
        logits, stop, summary = self.scorer(states, nodes, graphs, self.embeddings())
        group = action_groups(states)
        log_probs = segment_log_softmax(torch.cat([logits, stop]), group, states.num_episodes)
        return log_probs, group, self.value(torch.cat([graphs, summary], dim=-1))

    @property
    def num_substitutions(self) -> int:
        """See `Guide`."""
        return self.library.num_substitutions

    def rate(self, states: Observation) -> tuple[Tensor, Tensor]:
        """See `Guide`."""
        log_probs, _, value_logits = self(states)
        return log_probs[: len(states.candidates)], self.value.mean(value_logits)

    def collate(self, states: Sequence[Observation]) -> Observation:
        """See `Policy`."""
        return collate(states)

    def pick(self, states: Observation, rows: Sequence[int]) -> list[Observation]:
        """See `Policy`."""
        return [states.episode(row) for row in rows]

    def size(self, state: Observation) -> int:
        """See `Policy`: nodes."""
        return len(state.ops)

    def act(self, states: Observation, draw: Draw) -> tuple[Tensor, Decision]:
        """See `Policy`. Actions [B]: rows of the episode's candidates, their number for stop."""
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


def action_groups(states: Observation) -> Tensor:
    """Episode of each action, [C + B]: first all candidates, then the stop of each episode."""
    return torch.cat([states.candidate_episode, torch.arange(states.num_episodes)])


def split_actions(states: Observation, rows: Tensor) -> list[Tensor]:
    """What is said of the rows of `action_groups`, for each episode by itself: its candidates, then stop."""
    count = len(states.candidates)
    of_candidates = rows[:count].split(states.counts.tolist())
    return [torch.cat([each, stop[None]]) for each, stop in zip(of_candidates, rows[count:], strict=True)]


def join_actions(parts: Sequence[Tensor]) -> Tensor:
    """The inverse of `split_actions`."""
    return torch.cat([each[:-1] for each in parts] + [each[-1:] for each in parts])


def action_rows(states: Observation, actions: Tensor) -> Tensor:
    """Rows among `action_groups` of actions [B] that are counted within their episode."""
    stop = len(states.candidates) + torch.arange(states.num_episodes)
    return torch.where(actions == states.counts, stop, states.candidate_offsets[:-1] + actions)


def _stops_last(noise: Tensor, states: Observation) -> Tensor:
    """Noise that was drawn episode by episode, stop last in each, in the order of `action_groups`."""
    ends = states.candidate_offsets[1:] + torch.arange(states.num_episodes)
    is_stop = torch.zeros(len(noise), dtype=torch.bool)
    is_stop[ends] = True
    return torch.cat([noise[~is_stop], noise[is_stop]])
