"""Plays groups of episodes in which a search chooses each step: the row "gumbel"."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.networks.candidate_controller import action_groups, action_rows, no_noise
from torchrlopt.agent.observation import Observation, observe
from torchrlopt.agent.rollout import Rollout, RolloutBuilder
from torchrlopt.env import OUTCOMES
from training.config import Config
from training.episodes.play import CandidateChooser, Key, draw_graph, draw_start
from training.episodes.random_keys import Purpose, generator, torch_seed
from training.episodes.search_teacher import NO_LIMIT_MS
from training.episodes.tree_search import Floats, TreeSearch, slots_for

#: Of the likelihood of a step in the search: a network is surer than what a search may find can outweigh.
UNIFORM_SHARE = 0.05


@dataclasses.dataclass
class SearchedRollout(Rollout):
    """A rollout with what the searches recommended.

    Attributes:
        policies: T tensors over the rows of `action_groups`; what comes from the search of each episode.
        best: [T + 1, B], lowest cost up to each state, as a share of the first one.
        found: [T, B], lowest cost in the tree of each state, as a share of the first one.
        rival: what an episode gains in which the network chooses without a search.
        num_shown: episodes, the first ones, whose steps were shown.
    """

    policies: list[Tensor] = dataclasses.field(default_factory=list)
    best: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    found: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    rival: float = 0.0
    num_shown: int = 0


def rated(chooser: CandidateChooser, seen: Observation) -> tuple[list[Floats], Floats]:
    """See `training.episodes.tree_search.Rate`; with `UNIFORM_SHARE`."""
    states, controller = chooser.translated(seen), chooser.controller
    log_probs, _, value_logits = controller(states)
    sizes = (states.counts + 1).to(log_probs.dtype)
    likelihoods = (1 - UNIFORM_SHARE) * log_probs.exp() + UNIFORM_SHARE / sizes[action_groups(states)]
    logits, count = likelihoods.double().log(), len(states.candidates)
    of_candidates, stops = logits[:count].split(states.counts.tolist()), logits[count:]
    found = [torch.cat([each, stop[None]]).numpy() for each, stop in zip(of_candidates, stops, strict=True)]
    return found, controller.value.mean(value_logits).double().numpy()


def play_searched(
    chooser: CandidateChooser,
    library: _C.Library,
    cost: _C.CostModel,
    key: Key,
    config: Config,
    graph: _C.Graph | None = None,
) -> SearchedRollout | None:
    """The episodes of one group; None where there is nothing to do in the graph.

    Args:
        chooser: has the networks.
        library: the substitutions.
        cost: prices.
        key: of graph, start and noise.
        config: rollouts, max_steps, simulations, considered; with teacher_expansions one more episode, the
            first, takes the steps that iterated local search finds by so many expansions.
        graph: to play on; None for that of the key.
    """
    if graph is None:
        graph = draw_graph(chooser, library, cost, key, config)
    num_shown = int(config.teacher_expansions > 0)
    total = (num_shown + config.rollouts) * slots_for(config.simulations)
    env = _C.VecRewriteEnv(
        [graph], library, cost, num_envs=total, max_steps=config.max_steps, has_macros=chooser.has_macros
    )
    start = draw_start(graph, library, cost, key, config)
    env.reset(list(range(total)), [start] * total)
    if env.outcomes()[0, OUTCOMES["terminated"]]:
        return None
    shown = _shown(env.graph(0), library, cost, key, config) if num_shown else []
    with torch.no_grad():
        rival = _gain_without(chooser, graph, library, cost, config, start)
        return _Play(env, chooser, key, config, shown, num_shown).run(rival)


def _shown(
    graph: _C.Graph, library: _C.Library, cost: _C.CostModel, key: Key, config: Config
) -> list[tuple[int, int]]:
    """(substitution, location) of the steps of iterated local search."""
    found = _C.search(
        graph,
        library,
        cost,
        searcher="iterated",
        budget_ms=NO_LIMIT_MS,
        budget_steps=config.teacher_expansions,
        max_length=config.max_steps - 1,
        seed=torch_seed(*key.numbers(Purpose.TEACHER)),
    )
    return [(library.find(name), location) for name, location in found["steps"]]


def _gain_without(
    chooser: CandidateChooser,
    graph: _C.Graph,
    library: _C.Library,
    cost: _C.CostModel,
    config: Config,
    start: dict[str, object],
) -> float:
    """What is gained where the network chooses the likeliest step each time."""
    env = _C.VecRewriteEnv([graph], library, cost, max_steps=config.max_steps, has_macros=chooser.has_macros)
    env.reset([0], [start])
    begin = env.outcomes()[0]
    outcome = begin
    while not (outcome[OUTCOMES["terminated"]] or outcome[OUTCOMES["truncated"]]):
        outcome = env.step(chooser.choose(observe(env), no_noise)[2].tolist())[0]
    fall = begin[OUTCOMES["best_us"]] - outcome[OUTCOMES["best_us"]]
    return float(fall / outcome[OUTCOMES["initial_us"]])


class _Play:
    """All episodes of an environment that was just reset, step by step."""

    def __init__(
        self,
        env: _C.VecRewriteEnv,
        chooser: CandidateChooser,
        key: Key,
        config: Config,
        shown: Sequence[tuple[int, int]],
        num_shown: int,
    ) -> None:
        self._env, self._chooser, self._key = env, chooser, key
        self._shown, self._num_shown, self._number = shown, num_shown, 0
        count = num_shown + config.rollouts
        self._tree = TreeSearch(
            env, count, config.simulations, config.considered, lambda seen: rated(chooser, seen)
        )
        self._noise = [generator(*key.numbers(Purpose.EPISODE, i)) for i in range(count)]
        self._builder = RolloutBuilder(count)

    def run(self, rival: float) -> SearchedRollout:
        """To the end of all."""
        policies, best, found = [], [self._best()], []
        while self._builder.alive.any():
            policy, lowest = self._step()
            self._number += 1
            policies.append(policy)
            best.append(self._best())
            found.append(lowest)
        seen = self._chooser.translated(observe(self._env, self._tree.slots))
        last = self._chooser.controller(seen)[2]
        made = self._builder.finish(self._chooser.controller.value.mean(last), self._key.group)
        return SearchedRollout(
            **vars(made),
            policies=policies,
            best=torch.stack(best),
            found=torch.stack(found),
            rival=rival,
            num_shown=self._num_shown,
        )

    def _best(self) -> Tensor:
        outcomes = self._env.outcomes()[self._tree.slots]
        shares = outcomes[:, OUTCOMES["best_us"]] / outcomes[:, OUTCOMES["initial_us"]]
        return torch.from_numpy(shares.astype(np.float32))

    def _step(self) -> tuple[Tensor, Tensor]:
        """One step of all episodes: the policies that were recommended, and the lowest costs found."""
        env, tree, number = self._env, self._tree, self._number
        seen = observe(env, tree.slots)
        logits, values = rated(self._chooser, seen)
        alive = [i for i in range(self._num_shown, len(logits)) if self._builder.alive[i]]
        noise = [self._noise[i].gumbel(size=len(logits[i])) for i in alive]
        searched = dict(
            zip(
                alive,
                tree.search(alive, [logits[i] for i in alive], values[alive], noise),
                strict=True,
            )
        )
        before = self._best()
        found = before.clone()
        first_us = env.outcomes()[0, OUTCOMES["initial_us"]]
        actions = seen.counts.clone()  # stop
        parts = [np.zeros(len(each)) for each in logits]
        for i in range(len(logits)):
            if i in searched:
                actions[i], parts[i] = searched[i].action, searched[i].policy
                found[i] = searched[i].best_us / first_us
            elif self._builder.alive[i]:  # it is shown
                if number < len(self._shown):
                    actions[i] = env.find(tree.slots[i], *self._shown[number])
                parts[i][int(actions[i])] = 1.0
        is_stop = actions == seen.counts
        for i in torch.nonzero(self._builder.alive & ~is_stop)[:, 0].tolist():
            tree.take(i, int(actions[i]))
        outcomes = torch.from_numpy(env.outcomes()[tree.slots])
        terminated = is_stop | (outcomes[:, OUTCOMES["terminated"]] > 0)
        ended = terminated | (outcomes[:, OUTCOMES["truncated"]] > 0)
        states = self._chooser.translated(seen)
        all_logits = _rows_of(logits)
        self._builder.add(
            states,
            actions,
            all_logits[action_rows(states, actions)].float(),
            torch.from_numpy(values).float(),
            before - self._best(),
            terminated,
            ended,
        )
        return _rows_of(parts).float(), found


def _rows_of(parts: Sequence[Floats]) -> Tensor:
    """What is said of each episode's candidates and stop, in the order of `action_groups`."""
    return torch.from_numpy(np.concatenate([each[:-1] for each in parts] + [each[-1:] for each in parts]))
