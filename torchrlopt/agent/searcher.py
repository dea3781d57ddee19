"""The search that the agent guides: greedy first, then a beam in the order that the networks suggest."""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from torchrlopt import _C, search
from torchrlopt.agent.checkpoint import Agent
from torchrlopt.agent.observation import Observation, observe_in_place
from torchrlopt.agent.quiet import undisturbed_torch
from torchrlopt.env import OUTCOMES, Observer
from torchrlopt.errors import RlOptError
from torchrlopt.options import Options
from torchrlopt.search import Plan

logger = logging.getLogger("torchrlopt")

GREEDY_SHARE = 0.4  # of the budget, at most
MAX_STEPS = 10**9  # a slot that is not stepped counts a step too
ILLEGAL = -1  # an action that changes nothing
MAX_ALIKE = 3  # graphs with equal costs that are followed
OFFERS = 4  # times the width of the beam: what many offers lead to is known already
Steps = list[tuple[str, int]]


@dataclasses.dataclass
class _Found:
    """The best that a guided search has seen."""

    cost_us: float
    steps: Steps
    expansions: int = 0
    candidates: int = 0
    is_exhausted: bool = False


@dataclasses.dataclass(frozen=True)
class _Offer:
    """A step that the beam may take from one of its graphs."""

    score: float
    way: float  # log-probability of all steps so far and this one
    slot: int
    action: int


class AgentSearcher:
    """See `torchrlopt.search.Searcher`.

    Args:
        agent: the networks; an untrained one makes the control of a comparison.
        name: what plans are signed with.
        value_weight: how much the predicted further improvement counts against the likelihood of the steps.
    """

    def __init__(self, agent: Agent, name: str = "agent", value_weight: float = 20.0) -> None:
        self._agent = agent
        self._name = name
        self._value_weight = value_weight

    def search(self, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options) -> Plan:
        """Greedy's plan, or a cheaper one. If the networks fail, the core's beam takes over."""
        begin = time.perf_counter()
        greedy = _classic(
            graph, library, cost, options, searcher="greedy", budget_ms=options.budget_ms * GREEDY_SHARE
        )
        deadline = begin + options.budget_ms / 1000
        best = greedy
        try:
            with undisturbed_torch():
                beam = _Beam(self._agent, graph, library, cost, options, self._value_weight)
                found = beam.run(greedy.steps, deadline)
            if found.cost_us < greedy.cost_after_ms * 1000 * (1 - 1e-9):
                best = _plan_of(found, graph, library, cost, options)
            expansions = greedy.expansions + found.expansions
            candidates = greedy.candidates + found.candidates
            is_exhausted = greedy.is_exhausted and found.is_exhausted
        except (RlOptError, RuntimeError, IndexError) as error:
            logger.warning("the agent failed, greedy and beam are used instead: %s", error)
            left_ms = max(0.0, (deadline - time.perf_counter()) * 1000)
            beam_plan = _classic(graph, library, cost, options, searcher="beam", budget_ms=left_ms)
            best = min(greedy, beam_plan, key=lambda plan: plan.cost_after_ms)
            expansions = greedy.expansions + beam_plan.expansions
            candidates = greedy.candidates + beam_plan.candidates
            is_exhausted = beam_plan.is_exhausted
        return dataclasses.replace(
            best,
            searcher=self._name,
            expansions=expansions,
            candidates=candidates,
            is_exhausted=is_exhausted,
            seconds=time.perf_counter() - begin,
        )


def _classic(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options, **changes: object
) -> Plan:
    return search.ClassicSearcher().search(graph, library, cost, dataclasses.replace(options, **changes))  # type: ignore[arg-type]


def _plan_of(
    found: _Found, graph: _C.Graph, library: _C.Library, cost: _C.CostModel, options: Options
) -> Plan:
    """Replays the steps for the costs in between."""
    state = _C.RewriteState(graph, library, cost, exact_only=options.numerics == "strict")
    before, costs = state.metrics["time_us"], []
    for name, location in found.steps:
        if not state.step(library.find(name), location):
            raise RlOptError("a step of the guided search cannot be replayed", got=(name, location))
        costs.append(state.metrics["time_us"] / 1000)
    return Plan(
        graph_hash=search.graph_hash(graph),
        library_hash=library.hash,
        steps=tuple(found.steps),
        costs_ms=tuple(costs),
        cost_before_ms=before / 1000,
        searcher="",
        expansions=0,
        candidates=0,
        is_exhausted=False,
        seconds=0.0,
    )


class _Beam:
    """`beam_width` graphs at once, in the slots of one environment."""

    def __init__(
        self,
        agent: Agent,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: Options,
        value_weight: float,
    ) -> None:
        self._controller = agent.controller
        if agent.controller.library.num_substitutions != len(library):
            raise RlOptError("the agent was loaded for another library")
        self._width = options.beam_width
        self._max_expansions = options.budget_steps or 2**62
        self._value_weight = value_weight
        self._env = _C.VecRewriteEnv(
            [graph],
            library,
            cost,
            num_envs=2 * self._width,
            max_steps=MAX_STEPS,
            exact_only=options.numerics == "strict",
        )
        self._observer = Observer(self._env)
        self._seen: set[int] = set()
        self._alike: collections.Counter[tuple[int, ...]] = collections.Counter()
        self._ways = [0.0] * (2 * self._width)  # log-probability of the way to the graph in each slot

    def run(self, incumbent: Iterable[tuple[str, int]], deadline: float) -> _Found:
        """Search until the deadline, the limit of expansions, or until nothing is left.

        Args:
            incumbent: a plan to begin from too, at its end and on its way.
            deadline: `time.perf_counter()` at the end.
        """
        plan = list(incumbent)
        prefixes = sorted({0, len(plan), len(plan) // 2})[-self._width :]
        starts = [{"graph": 0, "prefix": plan[:length]} for length in prefixes]
        starts += [{"graph": 0}] * (2 * self._width - len(starts))
        self._env.reset(list(range(2 * self._width)), starts)
        initial_us = float(self._env.outcomes()[0, OUTCOMES["initial_us"]])
        found = _Found(initial_us, [])
        beam = self._note(list(range(len(prefixes))), found)
        last = 0.0
        while beam:
            begin = time.perf_counter()
            # A level that would overrun the budget is not begun.
            if begin + last > deadline or found.expansions + len(beam) > self._max_expansions:
                return found
            offers = self._offers(beam, found)
            beam = self._take(offers, beam, found, deadline)
            last = time.perf_counter() - begin
        found.is_exhausted = time.perf_counter() < deadline
        return found

    def _note(self, slots: list[int], found: _Found) -> list[int]:
        """Updates the best; the slots whose graph is new and can be rewritten further."""
        outcomes = self._env.outcomes()
        columns = [OUTCOMES[name] for name in ("cost_after_us", "flops", "bytes", "launches")]
        kept = []
        for slot in slots:
            cost_us = float(outcomes[slot, OUTCOMES["cost_after_us"]])
            if cost_us < found.cost_us * (1 - 1e-9):
                found.cost_us, found.steps = cost_us, self._env.steps(slot)
            # Graphs with the same costs in all respects are mostly images of each other: a few are enough.
            alike = tuple(round(float(outcomes[slot, column]) * 1e3) for column in columns)
            key = self._env.hash(slot)
            is_new = key not in self._seen and self._alike[alike] < MAX_ALIKE
            if is_new and not outcomes[slot, OUTCOMES["terminated"]]:
                kept.append(slot)
                self._alike[alike] += 1
            self._seen.add(key)
        return kept

    def _offers(self, alive: list[int], found: _Found) -> list[_Offer]:
        """The best steps from all graphs of the beam, the best first; more than it is wide."""
        states = observe_in_place(self._observer).select(alive)
        found.expansions += len(alive)
        found.candidates += len(states.candidates)
        log_probs, _, value_logits = self._controller(states)
        values = self._controller.value.mean(value_logits)
        way = torch.tensor([self._ways[slot] for slot in alive], dtype=torch.float32)
        ways = way[states.candidate_episode] + log_probs[: len(states.candidates)]
        scores = self._scores(states, ways, values)
        count = min(OFFERS * self._width, len(scores))
        best = scores.topk(count)
        offers = []
        for score, row in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if score == -torch.inf:
                continue
            episode = int(states.candidate_episode[row])
            action = row - int(states.candidate_offsets[episode])
            offers.append(_Offer(score, float(ways[row]), alive[episode], action))
        return offers

    def _scores(self, states: Observation, ways: Tensor, values: Tensor) -> Tensor:
        """[C]: likelihood of the way, plus what the graph it comes from still promises; seen ones last."""
        schema = self._controller.schema
        cost = states.globals[:, schema.column("global", "cost")]
        promise = self._value_weight * (values - cost)
        is_visited = states.candidates[:, schema.column("candidate", "is_visited")] > 0
        return (ways + promise[states.candidate_episode]).masked_fill(is_visited, -torch.inf)

    def _take(self, offers: list[_Offer], beam: list[int], found: _Found, deadline: float) -> list[int]:
        """Steps into the offered graphs until as many new ones as the beam is wide are found; their slots."""
        free = [slot for slot in range(2 * self._width) if slot not in beam]
        kept: list[int] = []
        todo = list(offers)
        while todo and len(kept) < self._width and time.perf_counter() < deadline:
            now, todo = todo[: self._width - len(kept)], todo[self._width - len(kept) :]
            placed = dict(zip(free, now, strict=False))
            actions = [ILLEGAL] * (2 * self._width)
            for slot, offer in placed.items():
                self._env.copy(offer.slot, slot)
                self._ways[slot] = offer.way
                actions[slot] = offer.action
            self._env.step(actions)
            new = self._note(list(placed), found)
            kept += new
            free = [slot for slot in free if slot not in new]
        return kept
