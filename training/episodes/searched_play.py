"""Play groups of episodes in which a tree search chooses each step: the row "gumbel"."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.networks.actions import no_noise
from torchrlopt.agent.observation import Observation, observe
from torchrlopt.env import OUTCOMES
from training.config import Config
from training.episodes.play import CandidateChooser, Key, draw_graph, draw_start, shown_steps
from training.episodes.tree_search import Floats, TreeSearch, slots_for
from training.networks.candidate_controller import action_groups, action_rows, join_actions, split_actions
from training.random_keys import Purpose, generator
from training.rollout import Rollout, RolloutBuilder

#: Share of the step probabilities in the search that is uniform: otherwise a network may be so confident that
#: no search result can outweigh it.
UNIFORM_SHARE = 0.05


@dataclasses.dataclass
class SearchedRollout(Rollout):
    """A rollout with the search's recommendations.

    Actions come from the searches; `log_probs` come from the network's policy, mixed as in the search.

    Attributes:
        policies: T tensors over the rows of `action_groups`: the search's policy for each episode.
        best: [T + 1, B], lowest cost up to each state, as a share of the first one.
        found: [T, B], lowest cost in the tree of each state, as a share of the first one.
        greedy_gain: gain of an episode in which the network takes the likeliest step each time.
        num_shown: number of leading episodes whose steps a teacher has shown.
    """

    policies: list[Tensor] = dataclasses.field(kw_only=True)
    best: Tensor = dataclasses.field(kw_only=True)
    found: Tensor = dataclasses.field(kw_only=True)
    greedy_gain: float = dataclasses.field(kw_only=True)
    num_shown: int = dataclasses.field(kw_only=True)


def evaluated(chooser: CandidateChooser, seen: Observation) -> tuple[list[Floats], Floats]:
    """See `training.episodes.tree_search.Evaluate`; mixes in `UNIFORM_SHARE`."""
    states, controller = chooser.translated(seen), chooser.controller
    log_probs, _, value_logits = controller(states)
    sizes = (states.counts + 1).to(log_probs.dtype)
    mixed = (1 - UNIFORM_SHARE) * log_probs.exp() + UNIFORM_SHARE / sizes[action_groups(states)]
    logits = [each.numpy() for each in split_actions(states, mixed.double().log())]
    return logits, controller.value.mean(value_logits).double().numpy()


def play_searched(
    chooser: CandidateChooser,
    library: _C.Library,
    cost: _C.CostModel,
    key: Key,
    config: Config,
    graph: _C.Graph | None = None,
) -> SearchedRollout | None:
    """Play the episodes of one group; return None if the graph offers no substitution.

    Args:
        chooser: holds the networks.
        library: the substitutions.
        cost: prices.
        key: of graph, start and noise.
        config: rollouts, max_steps, simulations, considered; with teacher_expansions there is an additional
            first episode, whose steps iterated local search finds within that many expansions.
        graph: to play on; None for the key's graph.
    """
    if graph is None:
        graph = draw_graph(chooser, library, cost, key, config)
    num_shown = int(config.teacher_expansions > 0)
    total = (num_shown + config.rollouts) * slots_for(config.simulations)
    env = _C.VecRewriteEnv(
        [graph], library, cost, num_envs=total, max_steps=config.max_steps, has_macros=chooser.has_macros
    )
    start = draw_start(graph, library, cost, key, config)
    env.reset(list(range(total)), [{}] * total)
    own = [slots_for(config.simulations) * i for i in range(num_shown + config.rollouts)]
    env.reset(own, [start] * len(own))  # the other slots are overwritten
    if env.outcomes()[0, OUTCOMES["terminated"]]:
        return None
    shown = shown_steps(env.graph(0), library, cost, key, config) if num_shown else []
    with torch.no_grad():
        greedy_gain = _greedy_gain(chooser, graph, library, cost, config, start)
        return _Play(env, chooser, key, config, shown, num_shown).run(greedy_gain)


def _greedy_gain(
    chooser: CandidateChooser,
    graph: _C.Graph,
    library: _C.Library,
    cost: _C.CostModel,
    config: Config,
    start: dict[str, object],
) -> float:
    """Gain of an episode in which the network takes the likeliest step each time."""
    env = _C.VecRewriteEnv([graph], library, cost, max_steps=config.max_steps, has_macros=chooser.has_macros)
    env.reset([0], [start])
    outcome = env.outcomes()[0]
    before_us = outcome[OUTCOMES["best_us"]]
    while not (outcome[OUTCOMES["terminated"]] or outcome[OUTCOMES["truncated"]]):
        outcome = env.step(chooser.choose(observe(env), no_noise)[2].tolist())[0]
    return float((before_us - outcome[OUTCOMES["best_us"]]) / outcome[OUTCOMES["initial_us"]])


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
        self._env, self._chooser = env, chooser
        self._shown, self._num_shown, self._number = shown, num_shown, 0
        count = num_shown + config.rollouts
        self._tree = TreeSearch(
            env, count, config.simulations, config.considered, lambda seen: evaluated(chooser, seen)
        )
        self._noise = [generator(*key.numbers(Purpose.EPISODE, i)) for i in range(count)]
        self._builder = RolloutBuilder(count)

    def run(self, greedy_gain: float) -> SearchedRollout:
        """Play until all episodes are over."""
        policies, best, found = [], [self._best()], []
        while self._builder.alive.any():
            policy, lowest = self._step()
            self._number += 1
            policies.append(policy)
            best.append(self._best())
            found.append(lowest)
        seen = self._chooser.translated(observe(self._env, self._tree.slots))
        last = self._chooser.controller(seen)[2]
        made = self._builder.finish(self._chooser.controller.value.mean(last))
        return SearchedRollout(
            **vars(made),
            policies=policies,
            best=torch.stack(best),
            found=torch.stack(found),
            greedy_gain=greedy_gain,
            num_shown=self._num_shown,
        )

    def _best(self) -> Tensor:
        outcomes = self._env.outcomes()[self._tree.slots]
        shares = outcomes[:, OUTCOMES["best_us"]] / outcomes[:, OUTCOMES["initial_us"]]
        return torch.from_numpy(shares.astype(np.float32))

    def _step(self) -> tuple[Tensor, Tensor]:
        """Take one step in all episodes; return the recommended policies and the lowest costs found."""
        seen = observe(self._env, self._tree.slots)
        logits, values = evaluated(self._chooser, seen)
        before = self._best()
        actions, policies, found = self._chosen(seen, logits, values, before)
        is_stop = actions == seen.counts
        for i in torch.nonzero(self._builder.alive & ~is_stop)[:, 0].tolist():
            self._tree.take(i, int(actions[i]))
        outcomes = torch.from_numpy(self._env.outcomes()[self._tree.slots])
        terminated = is_stop | (outcomes[:, OUTCOMES["terminated"]] > 0)
        states = self._chooser.translated(seen)
        self._builder.add(
            states,
            actions,
            join_actions([torch.from_numpy(each) for each in logits])[action_rows(states, actions)].float(),
            torch.from_numpy(values).float(),
            before - self._best(),
            terminated,
            terminated | (outcomes[:, OUTCOMES["truncated"]] > 0),
        )
        return policies, found

    def _chosen(
        self, seen: Observation, logits: list[Floats], values: Floats, best: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions [B], the recommended policies, and the lowest costs found [B]."""
        actions, found = seen.counts.clone(), best.clone()  # stop
        policies = [torch.zeros(len(each)) for each in logits]
        living = torch.nonzero(self._builder.alive)[:, 0].tolist()
        for i in living[: self._num_shown]:
            if i < self._num_shown:
                actions[i] = self._shown_action(i, int(seen.counts[i]))
                policies[i][actions[i]] = 1.0
        searched = [i for i in living if i >= self._num_shown]
        noise = [self._noise[i].gumbel(size=len(logits[i])) for i in searched]
        first_us = self._env.outcomes()[:, OUTCOMES["initial_us"]]
        for i, each in zip(
            searched,
            self._tree.search(searched, [logits[i] for i in searched], values[searched], noise),
            strict=True,
        ):
            actions[i], policies[i] = each.action, torch.from_numpy(each.policy).float()
            found[i] = each.best_us / first_us[self._tree.slots[i]]
        return actions, join_actions(policies), found

    def _shown_action(self, episode: int, stop: int) -> int:
        """The teacher's action; stop at the end of its plan."""
        if self._number >= len(self._shown):
            return stop
        action = self._env.find(self._tree.slots[episode], *self._shown[self._number])
        if action < 0:
            raise RuntimeError(f"a step of a plan cannot be taken: {self._shown[self._number]}")
        return action
