"""Search by sampled episodes: the policy plays its likeliest episode, then samples others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.agent.networks.agent_network import AgentNetwork, Player
from torchrlopt.agent.observation import observe
from torchrlopt.agent.search.explorer import Explorer, Found, Steps
from torchrlopt.env import OUTCOMES
from torchrlopt.machine.contention import own_time
from torchrlopt.options import SearchOptions

MAX_LENGTH = 200  # steps of an episode


class DrawnEpisodes(Explorer):
    """Plays `beam_width` episodes in parallel, repeatedly.

    Args:
        network: the networks.
        graph: the graph to optimise.
        library: the substitutions.
        cost: the cost model.
        options: beam_width, budget_steps, seed and numerics.
    """

    def __init__(
        self,
        network: AgentNetwork,
        graph: _C.Graph,
        library: _C.Library,
        cost: _C.CostModel,
        options: SearchOptions,
    ) -> None:
        self._network = network
        self._rows = network.rows_of(library.names)
        self._width = options.beam_width
        self._generator = torch.Generator().manual_seed(options.seed)
        super().__init__(
            graph, library, cost, options, num_envs=self._width, has_macros=network.config.has_macros
        )

    def explore(self, plan: Steps, found: Found, deadline: float) -> list[int]:
        """See `Explorer`; every other episode begins at the plan's end or middle."""
        prefixes = (0, len(plan), 0, len(plan) // 2)
        starts = [{"graph": 0, "prefix": plan[: prefixes[i % 4]]} for i in range(self._width)]
        found.is_cut = True  # sampling never proves that the search is exhaustive
        is_first = True
        while is_first or self._may_go_on(found, deadline):
            self._env.reset(list(range(self._width)), starts)
            self._play(found, deadline, is_first)
            is_first = False
        ends: dict[int, int] = {}
        for slot in range(self._width):
            ends.setdefault(self._env.hash(slot), slot)
        return list(ends.values())

    def _may_go_on(self, found: Found, deadline: float) -> bool:
        return own_time() < deadline and self._may_expand(self._width, found)

    def _play(self, found: Found, deadline: float, is_first: bool) -> None:
        """Play one round of episodes, to their ends or until the budget is used up."""
        player = Player(self._network, self._rows)
        self._note(found)
        for _ in range(MAX_LENGTH):
            outcomes = self._env.outcomes()
            is_done = outcomes[:, OUTCOMES["terminated"]] > 0
            if is_done.all() or not self._may_go_on(found, deadline):
                return
            seen = observe(self._env)
            found.expansions += int((~is_done).sum())
            found.candidates += len(seen.candidates)
            self._env.step(player.choose(seen, lambda sizes: self._noise(sizes, is_first)).tolist())
            self._note(found)

    def _noise(self, sizes: Sequence[int], is_first: bool) -> Tensor:
        """Return Gumbel noise; zero for the first two episodes of the first round, which are greedy."""
        drawn = torch.empty(sum(sizes), dtype=torch.float32).exponential_(generator=self._generator)
        noise = -drawn.clamp(min=1e-20).log()
        if is_first:
            noise[: sum(sizes[:2])] = 0.0
        return noise

    def _note(self, found: Found) -> None:
        costs = self._env.outcomes()[:, OUTCOMES["cost_after_us"]]
        slot = int(costs.argmin())
        if costs[slot] < found.cost_us:
            found.note(float(costs[slot]), self._env.steps(slot))
