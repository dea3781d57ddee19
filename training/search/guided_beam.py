"""Beam search that tries the steps with the highest policy and value scores first."""

from __future__ import annotations

import collections
import dataclasses

import torch

from torchrlopt import _C
from torchrlopt.agent.observation import observe_in_place
from torchrlopt.agent.search.explorer import Explorer, Found, Steps
from torchrlopt.env import OUTCOMES
from torchrlopt.errors import RlOptError
from torchrlopt.machine.contention import own_time
from torchrlopt.options import SearchOptions
from training.networks.candidate_controller import Guide

MIN_ALIKE = 3  # graphs of equal cost to keep: this many, or the beam width if larger
# Offered steps per slot of the beam: many of them lead to graphs seen before.
OFFERS = 4


@dataclasses.dataclass(frozen=True)
class Offer:
    """A candidate step from one of the graphs in the beam."""

    score: float
    way: float  # log-probability of all steps including this one
    slot: int
    action: int


class GuidedBeam(Explorer):
    """A beam of `beam_width` graphs in the slots of one environment, with as many slots for the next level.

    Args:
        guide: the networks, or a replacement that rates states.
        graph: the graph to optimise.
        library: the substitutions.
        cost: the cost model.
        options: beam_width, budget_steps and numerics.
        value_weight: weight of the predicted further improvement relative to the likelihood of the steps.

    Raises:
        RlOptError: the networks were loaded for another library.
    """

    def __init__(
        self,
        guide: Guide,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: SearchOptions,
        value_weight: float,
    ) -> None:
        if guide.num_substitutions != len(library):
            raise RlOptError("the agent was loaded for another library")
        self._guide = guide
        self._width = options.beam_width
        self._value_weight = value_weight
        super().__init__(graph, library, cost, options, num_envs=2 * self._width, has_macros=True)
        self._seen: set[int] = set()
        self._alike: collections.Counter[tuple[int, ...]] = collections.Counter()
        self._ways = [0.0] * (2 * self._width)  # log-probability of the path to the graph in each slot

    def explore(self, plan: Steps, found: Found, deadline: float) -> list[int]:
        """See `Explorer`; starts at the plan's end, the graph and the plan's middle, up to the beam width."""
        lengths = list(dict.fromkeys((len(plan), 0, len(plan) // 2)))
        prefixes = lengths[: self._width]
        found.is_cut |= len(prefixes) < len(lengths)
        starts = [{"graph": 0, "prefix": plan[:length]} for length in prefixes]
        starts += [{"graph": 0}] * (2 * self._width - len(starts))
        self._env.reset(list(range(2 * self._width)), starts)
        beam = ends = self._note(list(range(len(prefixes))), found)
        last = 0.0
        while beam:
            begin = own_time()
            # Do not begin a level that would overrun the budget.
            if begin + last > deadline or not self._may_expand(len(beam), found):
                return beam
            ends = beam
            beam = self._take(self._offers(beam, found), beam, found, deadline)
            last = own_time() - begin
        found.is_exhausted = own_time() < deadline
        return ends

    def _note(self, slots: list[int], found: Found) -> list[int]:
        """Update the best plan; return the slots whose graph is new and can be rewritten further."""
        outcomes = self._env.outcomes()
        columns = [OUTCOMES[name] for name in ("cost_after_us", "flops", "bytes", "launches")]
        kept = []
        for slot in slots:
            cost_us = float(outcomes[slot, OUTCOMES["cost_after_us"]])
            if cost_us < found.cost_us:
                found.note(cost_us, self._env.steps(slot))
            # Graphs with equal time, flops, bytes and launches mostly differ by symmetry only: a few are
            # enough.
            alike = tuple(round(float(outcomes[slot, column]) * 1e3) for column in columns)
            key = self._env.hash(slot)
            is_new = key not in self._seen and not outcomes[slot, OUTCOMES["terminated"]]
            self._seen.add(key)
            if is_new and self._alike[alike] < max(MIN_ALIKE, self._width):
                kept.append(slot)
                self._alike[alike] += 1
            else:
                found.is_cut |= is_new
        return kept

    def _offers(self, alive: list[int], found: Found) -> list[Offer]:
        """Return steps from all graphs of the beam to unseen graphs, best first."""
        states = observe_in_place(self._observer, alive)
        found.expansions += len(alive)
        found.candidates += len(states.candidates)
        log_probs, values = self._guide.rate(states)
        way = torch.tensor([self._ways[slot] for slot in alive], dtype=torch.float32)
        ways = way[states.candidate_episode] + log_probs
        # The value predicts the gain over the best graph of the path, which may be cheaper than this one.
        promise = self._value_weight * (values - states.column("global", "best_cost"))
        scores = ways + promise[states.candidate_episode]
        hashes = [key for slot in alive for key in self._env.hashes_after(slot)]
        numbers, likelihoods = scores.tolist(), ways.tolist()
        owners, firsts = states.candidate_episode.tolist(), states.candidate_offsets.tolist()
        offers: dict[int, Offer] = {}  # by resulting graph, the best path to it
        for row in scores.argsort(descending=True).tolist():
            if hashes[row] in self._seen or hashes[row] in offers:
                continue
            if len(offers) == OFFERS * self._width:
                found.is_cut = True
                break
            owner = owners[row]
            offers[hashes[row]] = Offer(numbers[row], likelihoods[row], alive[owner], row - firsts[owner])
        return list(offers.values())

    def _take(self, offers: list[Offer], beam: list[int], found: Found, deadline: float) -> list[int]:
        """Take offered steps until the beam is full of new graphs; return their slots."""
        free = [slot for slot in range(2 * self._width) if slot not in beam]
        kept: list[int] = []
        todo = list(offers)
        while todo and len(kept) < self._width and own_time() < deadline:
            now, todo = todo[: self._width - len(kept)], todo[self._width - len(kept) :]
            targets = free[: len(now)]
            for slot, offer in zip(targets, now, strict=True):
                self._ways[slot] = offer.way
            self._env.branch([offer.slot for offer in now], targets, [offer.action for offer in now])
            new = self._note(targets, found)
            kept += new
            free = [slot for slot in free if slot not in new]
        found.is_cut |= bool(todo)
        return kept
