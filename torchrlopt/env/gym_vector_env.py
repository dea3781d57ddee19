"""A Gymnasium `VectorEnv` of many episodes, for learners of other libraries.

It adapts `_C.VecRewriteEnv` and adds padded observations, rewards, random starts and Gymnasium's autoreset
modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from torchrlopt import _C
from torchrlopt.env.gym_padding import Padding, to_core
from torchrlopt.env.observation import Arrays, observe
from torchrlopt.env.reward import OUTCOMES, Reward, best_so_far
from torchrlopt.errors import EnvError

#: How an episode begins: graph, prefix, random_steps and seed, each optional (`_C.VecRewriteEnv.reset`).
Start = dict[str, Any]
Starts = Callable[[np.random.Generator], Start]


class RewriteVectorEnv(VectorEnv[Arrays, NDArray[Any], NDArray[Any]]):
    """Episodes over several graphs, stepped by the core's threads.

    A finished episode is reset within the same step (`AutoresetMode.SAME_STEP`): the observation belongs to
    the next episode, and `info["final_obs"]` and `info["final_info"]` hold the end of the last one. So there
    are no dummy transitions, as in mode NEXT_STEP. With `AutoresetMode.DISABLED`, finished episodes do not
    change until `reset(options={"reset_mask": ...})`.

    Args:
        graphs: initial graphs of episodes.
        library: the substitutions that may be applied.
        cost: the cost model.
        num_envs: number of parallel episodes, B.
        num_threads: number of threads that step them.
        max_steps: number of steps after which an episode is truncated.
        reward: see `torchrlopt.env.reward`.
        starts: draws the start of an episode; default: a uniformly drawn graph of `graphs`, unchanged.
        padding: sizes of the observations.
        autoreset_mode: SAME_STEP or DISABLED.
        exact_only: allow bit-exact substitutions only.
        has_macros: offer a substitution at a whole class of similar places as one action, too.

    Raises:
        EnvError: `graphs` is empty, or the mode is NEXT_STEP.
    """

    def __init__(
        self,
        graphs: Sequence[_C.Graph],
        library: _C.Library,
        cost: _C.CostModel,
        num_envs: int,
        *,
        num_threads: int = 1,
        max_steps: int = 100,
        reward: Reward = best_so_far,
        starts: Starts | None = None,
        padding: Padding | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        exact_only: bool = False,
        has_macros: bool = False,
    ) -> None:
        if autoreset_mode == AutoresetMode.NEXT_STEP:
            raise EnvError(
                "NEXT_STEP inserts transitions that are none",
                expected="SAME_STEP or DISABLED",
                got=autoreset_mode,
            )
        self.core = _C.VecRewriteEnv(
            list(graphs),
            library,
            cost,
            num_envs=num_envs,
            num_threads=num_threads,
            max_steps=max_steps,
            exact_only=exact_only,
            has_macros=has_macros,
        )
        self.num_envs = num_envs
        self.padding = padding or Padding()
        self.metadata = {"autoreset_mode": autoreset_mode, "render_modes": []}
        self.single_observation_space = self.padding.space()
        self.single_action_space = gymnasium.spaces.Discrete(self.padding.candidates + 1)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._reward = reward
        self._starts = starts or self._any_graph
        self._counts = np.zeros(num_envs, dtype=np.int64)
        self._first = np.zeros((num_envs, len(OUTCOMES)))  # outcomes at the start of each episode

    def _any_graph(self, generator: np.random.Generator) -> Start:
        return {"graph": int(generator.integers(self.core.num_graphs))}

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Reset all episodes, or those selected by `options["reset_mask"]`, bool [B].

        Args:
            seed: seed of the starts; of a list, the first entry is used.
            options: reset_mask, and starts: one start per reset episode instead of random ones.
        """
        super().reset(seed=seed[0] if isinstance(seed, list) else seed, options=options)
        given = options or {}
        mask = np.asarray(given.get("reset_mask", np.ones(self.num_envs, dtype=bool)), dtype=bool)
        self._begin(np.flatnonzero(mask), given.get("starts"))
        return self._observe(), self._info(self.core.outcomes())

    def _begin(self, envs: NDArray[Any], starts: Sequence[Start] | None = None) -> None:
        drawn = starts if starts is not None else [self._starts(self.np_random) for _ in envs]
        self.core.reset(envs.tolist(), list(drawn))
        self._first[envs] = self.core.outcomes()[envs]

    def _observe(self) -> Arrays:
        arrays = observe(self.core)
        self._counts = np.diff(arrays["candidate_offsets"])
        return self.padding.pad(arrays, self.num_envs)

    def _info(self, outcomes: NDArray[Any]) -> dict[str, Any]:
        info: dict[str, Any] = {name: outcomes[:, column].copy() for name, column in OUTCOMES.items()}
        info.update({f"_{name}": np.ones(self.num_envs, dtype=bool) for name in OUTCOMES})
        return info

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Arrays, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Take one action in each episode.

        Args:
            actions: [B], rows of candidates; `padding.candidates` is stop. An illegal action is a no-op that
                counts as a step.

        Returns:
            Observations, rewards [B], terminated [B], truncated [B], and the outcomes by name.
        """
        before = self.core.outcomes()
        after = self.core.step(to_core(np.asarray(actions), self._counts, self.padding))
        rewards = self._reward(before, after, self._first)
        terminated = after[:, OUTCOMES["terminated"]] > 0
        truncated = after[:, OUTCOMES["truncated"]] > 0
        info = self._info(after)
        done = np.flatnonzero(terminated | truncated)
        observation = self._observe()
        if len(done) and self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP:
            info.update(self._final(observation, info, done))
            self._begin(done)
            observation = self._observe()
        return observation, rewards, terminated, truncated, info

    def _final(self, observation: Arrays, info: dict[str, Any], done: NDArray[Any]) -> dict[str, Any]:
        ended = np.zeros(self.num_envs, dtype=bool)
        ended[done] = True
        last = np.full(self.num_envs, None, dtype=object)
        for env in done:
            last[env] = {name: array[env].copy() for name, array in observation.items()}
        final = {name: np.where(ended, info[name], 0) for name in OUTCOMES}
        final.update({f"_{name}": ended.copy() for name in OUTCOMES})
        return {"final_obs": last, "_final_obs": ended, "final_info": final, "_final_info": ended.copy()}

    def steps(self, env: int) -> list[tuple[str, int]]:
        """Return the (substitution, location) of all steps of an episode, from its original graph."""
        return self.core.steps(env)
