"""Gumbel AlphaZero (Danihelka et al. 2022): a search in the tree of graphs chooses each step of an episode.

The core is the simulator, so rewards and states are exact; a network provides the prior over steps and the
value of a graph. Several episodes of one graph search in lockstep, so that the network evaluates all new
leaves in one batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from torchrlopt import _C
from torchrlopt.agent.observation import Observation, observe
from torchrlopt.env import OUTCOMES

Floats = NDArray[np.float64]
#: Evaluates B states: logits of the candidates and of stop, one array per state, and values [B].
Evaluate = Callable[[Observation], tuple[list[Floats], Floats]]

# How strongly values count against the prior, growing with the number of visits: c_visit and c_scale of the
# paper, with the defaults of its authors' library for values scaled to [0, 1].
_VISIT_OFFSET, _VALUE_SCALE = 50, 0.1
# Smaller value ranges are not stretched to the whole range: the network is not that accurate.
_LEAST_SPAN = 0.002


@dataclasses.dataclass
class Node:
    """A graph of the tree.

    Attributes:
        slot: slot of the environment that holds the graph.
        logits: [A], of the candidates and, last, of stop; of stop only if the episode is over.
        value: the network's estimate of the remaining gain, as a share of the first cost; 0 if it is over.
        best_us: lowest cost on the path to it.
        children: by action.
        prior: [A], the probabilities.
        visits: [A].
        value_sums: [A], sums of the gains after each action.
    """

    slot: int
    logits: Floats
    value: float
    best_us: float
    children: dict[int, Node] = dataclasses.field(default_factory=dict)
    prior: Floats = dataclasses.field(init=False)
    visits: NDArray[np.int64] = dataclasses.field(init=False)
    value_sums: Floats = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.prior = np.asarray(softmax(self.logits))
        self.visits = np.zeros(len(self.logits), dtype=np.int64)
        self.value_sums = np.zeros(len(self.logits))

    @property
    def stop(self) -> int:
        """The action that ends the episode."""
        return len(self.logits) - 1

    def scaled_completed_q(self) -> Floats:
        """[A], the values of all actions as added to the logits: sigma of the paper.

        Unvisited actions get the paper's mixed value: the network's value combined with the prior-weighted
        mean of the known values.
        """
        is_visited = self.visits > 0
        values = self.value_sums / np.maximum(self.visits, 1)
        total, weight = int(self.visits.sum()), float(self.prior[is_visited].sum())
        known = float(self.prior[is_visited] @ values[is_visited]) / weight if weight > 0 else self.value
        values = np.where(is_visited, values, (self.value + total * known) / (1 + total))
        span = max(float(values.max() - values.min()), _LEAST_SPAN)
        return (_VISIT_OFFSET + int(self.visits.max())) * _VALUE_SCALE * (values - values.min()) / span

    def improved_policy(self) -> Floats:
        """[A], the policy recommended by the search: pi' of the paper."""
        return np.asarray(softmax(self.logits + self.scaled_completed_q()))

    def inner_choice(self) -> int:
        """Below the root: the action that brings the visit counts closest to the improved policy."""
        return int(np.argmax(self.improved_policy() - self.visits / (1 + self.visits.sum())))


def sequential_halving(considered: int, simulations: int) -> list[int]:
    """For each simulation, the visit count of the actions to choose from, by sequential halving.

    Args:
        considered: number of actions at the start; half of them drop out after each round.
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
    """Search result for one state.

    Attributes:
        action: to take.
        policy: [A], the recommended policy.
        best_us: lowest cost of all graphs in the tree.
    """

    action: int
    policy: Floats
    best_us: float


Path = list[tuple[Node, int]]


@dataclasses.dataclass
class _Search:
    """The search for one step of one episode.

    Attributes:
        root: where it starts.
        noise: [A], Gumbel noise for the root's actions.
        order: visit counts of sequential halving.
        first_us: cost of the first graph; gains are shares of it.
        next_slot: for the next new graph.
        lowest_us: of all graphs so far.
    """

    root: Node
    noise: Floats
    order: list[int]
    first_us: float
    next_slot: int
    lowest_us: float

    def root_choice(self, visits: int) -> int:
        """The best root action among those with the given visit count."""
        scores = self.noise + self.root.logits + self.root.scaled_completed_q()
        return int(np.argmax(np.where(self.root.visits == visits, scores, -np.inf)))

    def path_to_leaf(self, visits: int) -> Path:
        """Path from the root, through such an action, to one that leaves the tree or ends the episode."""
        path = [(self.root, self.root_choice(visits))]
        while True:
            node, action = path[-1]
            child = node.children.get(action)
            if child is None:
                return path
            path.append((child, child.inner_choice()))

    def back_up(self, path: Path) -> None:
        """Add the outcome of a path to all of its nodes."""
        node, action = path[-1]
        end = node.children.get(action)
        gain = 0.0 if end is None else end.value  # nothing follows a stop
        self.lowest_us = min(self.lowest_us, node.best_us if end is None else end.best_us)
        for node, action in reversed(path):
            child = node.children.get(action)
            if child is not None:
                gain += (node.best_us - child.best_us) / self.first_us
            node.visits[action] += 1
            node.value_sums[action] += gain


class TreeSearch:
    """Tree search for several episodes of one environment, each with slots for the graphs of its tree.

    Args:
        env: `slots_for(simulations)` slots per episode; an episode occupies the first of its slots.
        episodes: number of episodes.
        simulations: n, graphs visited per step.
        considered: m, root actions considered, drawn without replacement.
        evaluate: the networks.
    """

    def __init__(
        self, env: _C.VecRewriteEnv, episodes: int, simulations: int, considered: int, evaluate: Evaluate
    ) -> None:
        self._env, self._evaluate = env, evaluate
        self._simulations, self._considered = simulations, considered
        self.slots = [episode * slots_for(simulations) for episode in range(episodes)]

    def search(
        self, episodes: Sequence[int], logits: list[Floats], values: Floats, noise: list[Floats]
    ) -> list[Searched]:
        """Choose a step for some episodes.

        Args:
            episodes: their numbers; none is over.
            logits: of each, see `Node`.
            values: [len(episodes)].
            noise: Gumbel noise for the actions of each.
        """
        outcomes = self._env.outcomes()
        searches = []
        for i, episode in enumerate(episodes):
            slot = self.slots[episode]
            best_us, first_us = (float(outcomes[slot, OUTCOMES[name]]) for name in ("best_us", "initial_us"))
            root = Node(slot, logits[i], float(values[i]), best_us)
            order = sequential_halving(min(self._considered, len(logits[i])), self._simulations)
            searches.append(_Search(root, noise[i], order, first_us, slot + 1, best_us))
        for number in range(self._simulations):
            paths = [each.path_to_leaf(each.order[number]) for each in searches]
            self._expand(searches, paths)
            for each, path in zip(searches, paths, strict=True):
                each.back_up(path)
        return [
            Searched(
                each.root_choice(int(each.root.visits.max())), each.root.improved_policy(), each.lowest_us
            )
            for each in searches
        ]

    def take(self, episode: int, action: int) -> None:
        """Take an action in an episode."""
        slot = self.slots[episode]
        # A slot cannot be branched onto itself.
        self._env.branch([slot], [slot + 1], [action])
        self._env.copy(slot + 1, slot)

    def _expand(self, searches: Sequence[_Search], paths: Sequence[Path]) -> None:
        """Create and evaluate the graphs where paths leave the tree."""
        leaves = []
        for search, path in zip(searches, paths, strict=True):
            node, action = path[-1]
            if action not in node.children and action != node.stop:
                leaves.append((node, action, search.next_slot))
                search.next_slot += 1
        if not leaves:
            return
        targets = [slot for _, _, slot in leaves]
        self._env.branch([node.slot for node, _, _ in leaves], targets, [action for _, action, _ in leaves])
        outcomes = self._env.outcomes()
        over = (outcomes[:, OUTCOMES["terminated"]] > 0) | (outcomes[:, OUTCOMES["truncated"]] > 0)
        alive = [slot for slot in targets if not over[slot]]
        found: dict[int, tuple[Floats, float]] = {}
        if alive:
            logits, values = self._evaluate(observe(self._env, alive))
            found = dict(zip(alive, zip(logits, values.tolist(), strict=True), strict=True))
        for node, action, slot in leaves:
            logits_here, value = found.get(slot, (np.zeros(1), 0.0))
            best_us = float(outcomes[slot, OUTCOMES["best_us"]])
            node.children[action] = Node(slot, logits_here, value, best_us)


def slots_for(simulations: int) -> int:
    """Environment slots needed per episode: its own, and one per new graph."""
    return 1 + simulations
