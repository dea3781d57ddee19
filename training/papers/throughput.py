"""Throughput of collectors in Gymnasium environments: steps per second on one core, with random actions."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from torchrlopt import _C
from torchrlopt.substitutions import load_library
from training.collectors.collector import Collector
from training.episodes.random_keys import generator
from training.graphs.curriculum import sample_graph
from training.papers.experiment import Data, Experiment, Results, Runs, Shown, bars, frame
from training.papers.runner import Result, Scale, Work, Workplace, kind, priced, versions

MAX_STEPS = 500  # of an episode of a Gymnasium environment
PORTION = 400  # steps per request, or twenty episodes, which is about the same number


def rewrite_env() -> gymnasium.Env[Any, Any]:
    """Rewriting of a small graph, with little padding of observations."""
    from torchrlopt.env import Padding, RewriteEnv

    graph = sample_graph(0, 3).graph
    return RewriteEnv([graph], load_library(), _C.CostModel(), max_steps=30, padding=Padding(64, 128, 64))


ENVIRONMENTS: dict[str, Callable[[], gymnasium.Env[Any, Any]]] = {
    "CartPole-v1": lambda: gymnasium.make("CartPole-v1").unwrapped,
    "RewriteEnv": rewrite_env,
}


@dataclasses.dataclass(frozen=True)
class GymTask:
    """See `training.collectors.worker.Task`. Episodes of an environment; a key is the episode's number.

    Attributes:
        environment: a name in `ENVIRONMENTS`.
    """

    environment: str

    def player(self) -> GymPlayer:
        """See `Task`."""
        return GymPlayer(self)


@dataclasses.dataclass(frozen=True)
class Episode:
    """T steps: observations [T + 1, ...] by name, actions and rewards [T], whether it terminated."""

    observations: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool


class GymPlayer:
    """See `training.collectors.worker.Player`.

    Args:
        task: whose episodes it plays.
    """

    def __init__(self, task: GymTask) -> None:
        self._env = ENVIRONMENTS[task.environment]()

    def load(self, state: bytes) -> None:
        """Do nothing: the actions are random."""

    def play(self, key: int) -> Episode:
        """Play the episode of a key."""
        env, rng = self._env, generator(key)
        seen = [env.reset(seed=int(rng.integers(2**31)))[0]]
        actions: list[int] = []
        rewards: list[float] = []
        terminated = truncated = False
        while not (terminated or truncated) and len(actions) < MAX_STEPS:
            action = rng.integers(env.action_space.n)  # type: ignore[attr-defined]
            observation, reward, terminated, truncated, _ = env.step(action)
            seen.append(observation)
            actions.append(action)
            rewards.append(float(reward))
        each = [observation if isinstance(observation, dict) else {"": observation} for observation in seen]
        columns = {name: np.stack([row[name] for row in each]) for name in each[0]}
        return Episode(columns, np.array(actions), np.array(rewards), bool(terminated))


def ours(environment: str) -> Iterator[int]:
    """Whole episodes through `training.collectors`; yields the number of steps in each portion."""
    number = 0
    with Collector(GymTask(environment), "in_process", share=None) as made:
        while True:
            episodes = made.collect(b"", range(number, number + 20))
            number += 20
            yield sum(len(each.actions) for each in episodes)


def torchrl(environment: str) -> Iterator[int]:
    """TorchRL's synchronous collector."""
    from torchrl.collectors import Collector as Theirs
    from torchrl.envs import GymWrapper

    made = Theirs(
        lambda: GymWrapper(ENVIRONMENTS[environment]()),
        None,
        frames_per_batch=PORTION,
        total_frames=-1,
        max_frames_per_traj=MAX_STEPS,
    )
    try:
        for batch in made:
            yield batch.numel()
    finally:
        made.shutdown()


def rllib(environment: str) -> Iterator[int]:
    """RLlib's environment runner, without the networks that it would create."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
    from ray.tune.registry import register_env

    class Runner(SingleAgentEnvRunner):  # type: ignore[misc]
        def make_module(self) -> None:
            self.module = None

    register_env(environment, lambda _: ENVIRONMENTS[environment]())
    settings = PPOConfig().environment(environment)
    made = Runner(config=settings.env_runners(num_env_runners=0, num_envs_per_env_runner=1))
    try:
        while True:
            episodes = made.sample(num_timesteps=PORTION, random_actions=True)
            yield sum(len(each) for each in episodes)
    finally:
        made.stop()


#: By name: the packages that it needs, and how it collects. The peers are optional dependencies.
CONTENDERS: Mapping[str, tuple[tuple[str, ...], Callable[[str], Iterator[int]]]] = {
    "ours": ((), ours),
    "TorchRL": (("torchrl",), torchrl),
    "Ray RLlib": (("ray", "tree"), rllib),
}


@kind(lambda contender, **others: f"{priced('gymnasium', *CONTENDERS[contender][0])}", measures=True)
def throughput(work: Work, contender: str, environment: str, steps: int, repetition: int) -> Result:
    """Steps and seconds of CPU time, without the first portion, which includes start-up."""
    portions = CONTENDERS[contender][1](environment)
    next(portions)
    made, began = 0, time.process_time()
    while made < steps:
        made += next(portions)
    cpu_seconds = time.process_time() - began
    portions.close()  # type: ignore[attr-defined]
    return {"steps": made, "cpu_seconds": cpu_seconds}


def _throughput_runs(scale: Scale, place: Workplace) -> Runs:
    here = [
        name
        for name, (packages, _) in CONTENDERS.items()
        if all(importlib.util.find_spec(each) is not None for each in packages)
    ]
    steps = scale.steps(10_000, least=200)
    return {
        (environment, name, each): throughput(
            contender=name, environment=environment, steps=steps, repetition=each
        )
        for each in range(scale.seeds)  # repetitions are outermost: contenders alternate
        for environment in ENVIRONMENTS
        for name in here
    }


def _throughput_data(results: Results, scale: Scale) -> Data:
    rows = [
        (*key, each["steps"], each["cpu_seconds"], each["steps"] / each["cpu_seconds"])
        for key, each in results.items()
    ]
    columns = ("environment", "collector", "repetition", "steps", "cpu_seconds", "steps_per_cpu_second")
    here = {package for _, name, _ in results for package in CONTENDERS[name][0]}
    facts = {"versions": versions("gymnasium", *sorted(here)), "steps": scale.steps(10_000, least=200)}
    return Data({"": frame(rows, *columns)}, facts)


def _throughput_shown(data: Data) -> Shown:
    best = data.main.groupby(["environment", "collector"], sort=False)["steps_per_cpu_second"].max()
    grid = bars(
        best.reset_index(), "collector", "steps_per_cpu_second", col="environment", sharey=False, aspect=1
    )
    table = best.map("{:,.0f}".format).rename("steps in a second of CPU time").reset_index()
    table["of ours"] = [value / best[key[0], "ours"] for key, value in best.items()]
    missing = [name for name in CONTENDERS if name not in set(data.main["collector"])]
    return {"": grid.figure}, {"table": table, "missing": missing, "turns": data.main["repetition"].nunique()}


THROUGHPUT = Experiment(
    "Throughput of collection, beside TorchRL and Ray RLlib",
    "Asked of RLgraph's comparison with RLlib",
    _throughput_runs,
    _throughput_data,
    _throughput_shown,
    "throughput",
)
