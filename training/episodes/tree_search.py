"""Gumbel AlphaZero (Danihelka et al. 2022): a search in the tree of graphs chooses each step of an episode.

The core is the simulator, so rewards and states are exact; a network gives the likelihood of steps and what a
graph will still gain. Several episodes of one graph search side by side, so that the network rates all their
new leaves at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from torchrlopt import _C
from torchrlopt.agent.observation import Observation, observe_in_place
from torchrlopt.env import OUTCOMES, Observer

Floats = NDArray[np.float64]
#: What is said of B states: logits of the candidates and of stop, one array for each, and values [B].
Rate = Callable[[Observation], tuple[list[Floats], Floats]]

# How much visits count against the network, and how much values do: those of the paper.
_VISIT_OFFSET, _VALUE_SCALE = 50, 0.1
# Values nearer to each other than that are not stretched to the whole range: a network is not as exact.
_LEAST_SPAN = 0.002


@dataclasses.dataclass
class Node:
    """A graph of the tree.

    Attributes:
        slot: episode of the environment that is there.
        logits: [A], of the candidates and, the last one, of stop; of stop only where the episode is over.
        value: what the network thinks it will still gain, as a share of the first cost; 0 where it is over.
        best_us: lowest cost on the way to it.
        children: by action.
        prior: [A], likelihoods of the logits.
        visits: [A].
        totals: [A], sums of what was gained after each action.
    """

    slot: int
    logits: Floats
    value: float
    best_us: float
    children: dict[int, Node] = dataclasses.field(default_factory=dict)
    prior: Floats = dataclasses.field(init=False)
    visits: NDArray[np.int64] = dataclasses.field(init=False)
    totals: Floats = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.prior = softmax(self.logits)
        self.visits = np.zeros(len(self.logits), dtype=np.int64)
        self.totals = np.zeros(len(self.logits))

    @property
    def stop(self) -> int:
        """The action that ends the episode."""
        return len(self.logits) - 1

    def scaled_values(self) -> Floats:
        """[A], of all actions, as they are added to logits; of those not visited, a mean of what is known."""
        is_visited = self.visits > 0
        values = self.totals / np.maximum(self.visits, 1)
        total, weight = int(self.visits.sum()), float(self.prior[is_visited].sum())
        known = float(self.prior[is_visited] @ values[is_visited]) / weight if weight > 0 else self.value
        values = np.where(is_visited, values, (self.value + total * known) / (1 + total))
        span = max(float(values.max() - values.min()), _LEAST_SPAN)
        return (_VISIT_OFFSET + int(self.visits.max())) * _VALUE_SCALE * (values - values.min()) / span

    def improved(self) -> Floats:
        """[A], the policy that the search recommends."""
        return softmax(self.logits + self.scaled_values())

    def inner_choice(self) -> int:
        """The action below the root that brings the visits nearest to the improved policy."""
        return int(np.argmax(self.improved() - self.visits / (1 + self.visits.sum())))


def softmax(logits: Floats) -> Floats:
    """Of one array."""
    likelihoods = np.exp(logits - logits.max())
    return np.asarray(likelihoods / likelihoods.sum())


def halving(considered: int, simulations: int) -> list[int]:
    """How often an action must have been visited before to be the next: sequential halving.

    Args:
        considered: actions at the beginning; half of them drop out after each round.
        simulations: of all rounds together.
    """
    if considered <= 1:
        return list(range(simulations))
    rounds = math.ceil(math.log2(considered))
    order: list[int] = []
    visits, left = 0, considered
    while len(order) < simulations:
        for _ in range(max(1, simulations // (rounds * left))):
            order += [visits] * left
            visits += 1
        left = max(2, left // 2)
    return order[:simulations]


@dataclasses.dataclass(frozen=True)
class Searched:
    """What a search says of one state.

    Attributes:
        action: to take.
        policy: [A], the recommended one.
        best_us: lowest cost of all graphs in the tree.
    """

    action: int
    policy: Floats
    best_us: float


class TreeSearch:
    """Searches for several episodes of one environment, each with slots for the graphs of its tree.

    Args:
        env: `slots_for(simulations)` slots for each of the episodes; episode i is in the first of its slots.
        episodes: how many.
        simulations: n, graphs that are visited for each step.
        considered: m, actions of the root that are tried, drawn without replacement.
        rate: the networks.
    """

    def __init__(
        self, env: _C.VecRewriteEnv, episodes: int, simulations: int, considered: int, rate: Rate
    ) -> None:
        self._env, self._rate = env, rate
        self._simulations, self._considered = simulations, considered
        self._observer = Observer(env)
        self.slots = [episode * slots_for(simulations) for episode in range(episodes)]

    def search(
        self, episodes: Sequence[int], logits: list[Floats], values: Floats, noise: list[Floats]
    ) -> list[Searched]:
        """What to do in some episodes.

        Args:
            episodes: their numbers; none is over.
            logits: of each, see `Node`.
            values: [len(episodes)].
            noise: Gumbel noise for the actions of each.
        """
        outcomes = self._env.outcomes()
        self._first_us = float(outcomes[0, OUTCOMES["initial_us"]])
        costs = outcomes[:, OUTCOMES["best_us"]]
        roots = [
            Node(self.slots[episode], logits[i], float(values[i]), float(costs[self.slots[episode]]))
            for i, episode in enumerate(episodes)
        ]
        orders = [halving(min(self._considered, len(each)), self._simulations) for each in logits]
        self._next = [root.slot + 1 for root in roots]
        lowest = [root.best_us for root in roots]
        for number in range(self._simulations):
            ways = [
                _way(root, _root_choice(root, noise[i], orders[i][number])) for i, root in enumerate(roots)
            ]
            self._expand(ways)
            for i, way in enumerate(ways):
                lowest[i] = min(lowest[i], self._back_up(way))
        return [
            Searched(_root_choice(root, noise[i], int(root.visits.max())), root.improved(), float(lowest[i]))
            for i, root in enumerate(roots)
        ]

    def take(self, episode: int, action: int) -> None:
        """Go on with an episode."""
        slot = self.slots[episode]
        # A slot is no target of itself.
        self._env.branch([slot], [slot + 1], [action])
        self._env.copy(slot + 1, slot)

    def _expand(self, ways: Sequence[list[tuple[Node, int]]]) -> None:
        """Make and rate the graphs where ways end that are not in the tree yet."""
        new = [
            (i, node, action)
            for i, way in enumerate(ways)
            for node, action in way[-1:]
            if action not in node.children and action != node.stop
        ]
        if not new:
            return
        targets = [self._next[i] for i, _, _ in new]
        for i, _, _ in new:
            self._next[i] += 1
        self._env.branch([node.slot for _, node, _ in new], targets, [action for _, _, action in new])
        outcomes = self._env.outcomes()
        over = (outcomes[:, OUTCOMES["terminated"]] > 0) | (outcomes[:, OUTCOMES["truncated"]] > 0)
        alive = [slot for slot in targets if not over[slot]]
        rated: dict[int, tuple[Floats, float]] = {}
        if alive:
            logits, values = self._rate(observe_in_place(self._observer, alive))
            rated = dict(zip(alive, zip(logits, values.tolist(), strict=True), strict=True))
        for slot, (_, node, action) in zip(targets, new, strict=True):
            likely, value = rated.get(slot, (np.zeros(1), 0.0))
            node.children[action] = Node(slot, likely, value, float(outcomes[slot, OUTCOMES["best_us"]]))

    def _back_up(self, way: list[tuple[Node, int]]) -> float:
        """Tell all nodes of a way what came of it; the lowest cost on it."""
        node, action = way[-1]
        end = node.children.get(action)
        gain = 0.0 if end is None else end.value  # nothing comes after a stop
        lowest = node.best_us if end is None else end.best_us
        for node, action in reversed(way):
            child = node.children.get(action)
            if child is not None:
                gain += (node.best_us - child.best_us) / self._first_us
            node.visits[action] += 1
            node.totals[action] += gain
        return lowest


def slots_for(simulations: int) -> int:
    """Slots of the environment that each episode needs: its own, and one for each new graph."""
    return 1 + simulations


def _root_choice(root: Node, noise: Floats, visits: int) -> int:
    """The best action of a root among those that were visited so often."""
    scores = noise + root.logits + root.scaled_values()
    return int(np.argmax(np.where(root.visits == visits, scores, -np.inf)))


def _way(root: Node, first: int) -> list[tuple[Node, int]]:
    """From the root to an action that leads out of the tree, or ends the episode."""
    way = [(root, first)]
    while True:
        node, action = way[-1]
        child = node.children.get(action)
        if child is None:
            return way
        way.append((child, child.inner_choice()))
