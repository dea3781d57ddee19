"""Steps that collectors make in a second of one core: ours beside those of TorchRL and of Ray RLlib.

All play the same Gymnasium environments with random actions, one environment at a time in one process. The
peers are measured where they are installed; they are no requirement of anything here.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from torchrlopt.substitutions import load_library
from training.collectors.collector import Collector
from training.experiments.experiment import Experiment, Results, table, write_csv
from training.experiments.gym_task import ENVIRONMENTS, MAX_STEPS, GymTask
from training.experiments.runs import Run, Scale, Workplace, versions

STEPS = 10_000  # at least
PORTION = 400  # steps that are asked for at once, or twenty episodes, which are about as many

#: Gives how many steps each portion had.
Portions = Iterator[int]


def ours(environment: str) -> Portions:
    """Whole episodes, through the contract of `training.collectors`."""
    number = 0
    with Collector(GymTask(environment), "in_process", share=None) as collector:
        while True:
            episodes = collector.collect(b"", range(number, number + 20))
            number += 20
            yield sum(len(each.actions) for each in episodes)


def torchrl(environment: str) -> Portions:
    """Its synchronous collector."""
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


def rllib(environment: str) -> Portions:
    """Its runner of environments, without the networks that it would make."""
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


#: By name: the packages that it needs, how it collects, and how in words.
CONTENDERS: Mapping[str, tuple[tuple[str, ...], Callable[[str], Portions], str]] = {
    "ours": ((), ours, "plays whole episodes in plain Python and packs them as they are sent to the learner"),
    "TorchRL": (("torchrl",), torchrl, "writes each step into a TensorDict"),
    "Ray RLlib": (("ray", "tree"), rllib, "passes each step through its connectors"),
}


@dataclasses.dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        steps: of the environment.
        cpu_seconds: of this process, in all its threads.
    """

    steps: int
    cpu_seconds: float


@dataclasses.dataclass(frozen=True)
class ThroughputRun(Run[Speed]):
    """See `Run`.

    Attributes:
        contender: a name in `CONTENDERS`.
        environment: a name in `ENVIRONMENTS`.
        steps: at least so many.
        repetition: its number.
    """

    contender: str
    environment: str
    steps: int
    repetition: int

    @property
    def name(self) -> str:
        """See `Run`."""
        who = self.contender.replace(" ", "")
        return f"throughput-{who}-{self.environment}-{self.steps}-{self.repetition}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        return f"{versions('gymnasium', *CONTENDERS[self.contender][0])} {load_library().hash}"

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    def make(self, tell: Callable[[], None]) -> Speed:
        """See `Run`. The first portion, in which everything begins, does not count."""
        portions = CONTENDERS[self.contender][1](self.environment)
        next(portions)
        steps, begin = 0, time.process_time()
        while steps < self.steps:
            steps += next(portions)
        cpu_seconds = time.process_time() - begin
        portions.close()  # type: ignore[attr-defined]
        tell()
        return Speed(steps, cpu_seconds)

    def read(self, kept: Mapping[str, Any]) -> Speed:
        """See `Run`."""
        return Speed(**kept)


def settings(scale: Scale, place: Workplace) -> list[ThroughputRun]:
    """All contenders that are installed take turns."""
    del place
    there = [
        name
        for name, (packages, _, _) in CONTENDERS.items()
        if all(importlib.util.find_spec(each) is not None for each in packages)
    ]
    steps = max(200, round(scale.share * STEPS))
    return [
        ThroughputRun(name, environment, steps, repetition)
        for repetition in range(scale.seeds)
        for environment in ENVIRONMENTS
        for name in there
    ]


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    runs = settings(results.scale, results.place)
    found = {run: results.finished.outcome(run) for run in runs}
    rate = {run: each.steps / each.cpu_seconds for run, each in found.items()}
    rows = [
        (run.environment, run.contender, run.repetition, each.steps, each.cpu_seconds, rate[run])
        for run, each in found.items()
    ]
    header = ("environment", "collector", "repetition", "steps", "cpu_seconds", "steps_per_cpu_second")
    write_csv(folder / "throughput.csv", header, rows)
    there = list(dict.fromkeys(run.contender for run in runs))
    best = {
        (environment, name): max(
            value for run, value in rate.items() if (run.environment, run.contender) == (environment, name)
        )
        for environment in ENVIRONMENTS
        for name in there
    }
    _plot(best, there, folder / "throughput.png")
    lines = [
        (environment, name, f"{value:,.0f}", value / best[environment, "ours"])
        for (environment, name), value in best.items()
    ]
    missing = [name for name in CONTENDERS if name not in there]
    return [
        "![steps](throughput.png)",
        "",
        *table(("environment", "collector", "steps in a second of CPU time", "of ours"), lines),
        "",
        f"Random actions, one process, one environment; at least {runs[0].steps} steps each, the best of "
        f"{results.scale.seeds} turns. CPU time, so that other work on the machine counts less.",
        "",
        *(f"- {name[0].upper()}{name[1:]} {CONTENDERS[name][2]}." for name in there),
        f"- Versions: {versions('gymnasium', *(each for name in there for each in CONTENDERS[name][0]))}.",
        *([f"- Not installed, so not measured: {', '.join(missing)}."] if missing else []),
    ]


def _plot(best: Mapping[tuple[str, str], float], there: list[str], path: Path) -> None:
    figure = Figure(figsize=(7, 3), layout="constrained")
    panels = figure.subplots(1, len(ENVIRONMENTS))
    for panel, environment in zip(panels, ENVIRONMENTS, strict=True):
        panel.bar(there, [best[environment, name] for name in there])
        panel.set_title(environment, fontsize=9)
        panel.set_ylabel("steps in a second of CPU time")
    figure.savefig(path, dpi=90)


THROUGHPUT = Experiment(
    "Throughput of collection, beside TorchRL and Ray RLlib",
    "Asked of RLgraph's comparison with RLlib",
    settings,
    report,
    "",
)
