"""A beam search that takes the steps first that policy and value rate highest."""

from __future__ import annotations

import collections
import dataclasses

import torch

from torchrlopt import _C
from torchrlopt.agent.networks.candidate_controller import Guide
from torchrlopt.agent.observation import observe_in_place
from torchrlopt.agent.search.explorer import Explorer, Found, Steps
from torchrlopt.env import OUTCOMES
from torchrlopt.errors import RlOptError
from torchrlopt.machine.contention import own_time
from torchrlopt.options import Options

MIN_ALIKE = 3  # of the graphs with equal costs at least so many are kept, or as many as the beam is wide
# So many steps are rated for each graph that the beam can hold: many of them lead to graphs seen before.
OFFERS = 4


@dataclasses.dataclass(frozen=True)
class Offer:
    """A step that the beam may take from one of its graphs."""

    score: float
    way: float  # log-probability of all steps so far and this one
    slot: int
    action: int


class GuidedBeam(Explorer):
    """`beam_width` graphs at once, in the slots of one environment, and as many slots for the next ones.

    Args:
        guide: the networks, or what rates in their place.
        graph: what to make faster.
        library: the substitutions.
        cost: prices.
        options: beam_width, budget_steps and numerics.
        value_weight: how much the predicted further improvement counts against the likelihood of the steps.

    Raises:
        RlOptError: the networks know another library.
    """

    def __init__(
        self,
        guide: Guide,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: Options,
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
        self._ways = [0.0] * (2 * self._width)  # log-probability of the way to the graph in each slot

    def explore(self, plan: Steps, found: Found, deadline: float) -> list[int]:
        """See `Explorer`: from the plan's end, the graph itself, the plan's middle; as many as it is wide."""
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
            # A level that would overrun the budget is not begun.
            if begin + last > deadline or not self._may_expand(len(beam), found):
                return beam
            ends = beam
            beam = self._take(self._offers(beam, found), beam, found, deadline)
            last = own_time() - begin
        found.is_exhausted = own_time() < deadline
        return ends

    def _note(self, slots: list[int], found: Found) -> list[int]:
        """Updates the best; the slots whose graph is new and can be rewritten further."""
        outcomes = self._env.outcomes()
        columns = [OUTCOMES[name] for name in ("cost_after_us", "flops", "bytes", "launches")]
        kept = []
        for slot in slots:
            cost_us = float(outcomes[slot, OUTCOMES["cost_after_us"]])
            if cost_us < found.cost_us:
                found.note(cost_us, self._env.steps(slot))
            # Graphs with equal time, flops, bytes and launches mostly differ by symmetry: a few are enough.
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
        """Steps from all graphs of the beam to graphs that no step led to before, the best first."""
        states = observe_in_place(self._observer, alive)
        found.expansions += len(alive)
        found.candidates += len(states.candidates)
        log_probs, values = self._guide.rate(states)
        way = torch.tensor([self._ways[slot] for slot in alive], dtype=torch.float32)
        ways = way[states.candidate_episode] + log_probs
        # The value is of what is gained below the best graph of the way, which may be cheaper than this one.
        promise = self._value_weight * (values - states.column("global", "best_cost"))
        scores = ways + promise[states.candidate_episode]
        hashes = [key for slot in alive for key in self._env.hashes_after(slot)]
        numbers, likelihoods = scores.tolist(), ways.tolist()
        owners, firsts = states.candidate_episode.tolist(), states.candidate_offsets.tolist()
        offers: dict[int, Offer] = {}  # by the graph that they lead to, the best way there
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
        """Steps into the offered graphs until as many new ones as the beam is wide are found; their slots."""
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
