"""A run in which one row measures graphs of one model, so many as it may."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchrlopt.substitutions import load_library
from training.config import Config
from training.device.prices import cost_of, typical_prices
from training.experiments.asking.learners import FAILED, LEARNERS, LEAST_UPDATES
from training.experiments.asking.timing import HOW
from training.experiments.efficiency.on_demand import AGAIN, Best, OnDemand
from training.experiments.efficiency.pool import EXPANSIONS, pool
from training.experiments.efficiency.rows import FREE, MOST_STEPS, MOST_TRIES, OF_POOL, ask, of_pool
from training.experiments.efficiency.subjects import SUBJECTS, source_of
from training.experiments.own_process import in_own_process
from training.experiments.runs import MEASURED, Run, versions
from training.train import trainer_of

ROWS = (*FREE, *OF_POOL, *LEARNERS)
_REWARD = "R5"  # its steps add up to what the episode saves
_POOL = 2.0  # graphs for each one that may be measured
_EPISODES = 2.0  # for each measurement, at most: where episodes end with what is known, nothing is measured


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a run leaves.

    Attributes:
        chosen: for each budget.
        measured: graphs.
        real_steps: of episodes; of WM and WM+ with those that are not measured, which train the encoder.
        seconds: on the clock, of which
        measuring_seconds: went into lowering and measuring.
    """

    chosen: list[Best]
    measured: int
    real_steps: int
    seconds: float
    measuring_seconds: float


@dataclasses.dataclass(frozen=True)
class AskingRun(Run[Asked]):
    """See `Run`.

    Attributes:
        row: one of `ROWS`.
        subject: one of `subjects.SUBJECTS`.
        executor: that runs the graphs.
        seed: of the row.
        budgets: numbers of measurements after which its choice is noted. With the last one it ends; a row
            that is trained ends its update first, of which the rest does not count.
    """

    row: str
    subject: str
    executor: str
    seed: int
    budgets: tuple[int, ...]

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"efficiency-{self.row}-{self.subject}-{self.executor}-{self.budgets[-1]}-seed{self.seed}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        settings = (
            self.config.settings()
            if self.row in LEARNERS
            else f"{MOST_STEPS} {MOST_TRIES} {_POOL} {EXPANSIONS}"
        )
        own = typical_prices(self.executor).to_json()
        subject = f"{SUBJECTS[self.subject]} {load_library().hash}"
        return f"{settings} {subject} {HOW} {AGAIN} {FAILED} {own} {versions(*MEASURED)}"

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    @property
    def config(self) -> Config:
        """Arguments of the training."""
        config = Config.of_row(
            self.row,
            graph=self.subject,
            seed=self.seed,
            max_steps=MOST_STEPS,
            reward=_REWARD,
            **LEARNERS[self.row],
        )
        episodes = config.groups * config.rollouts
        updates = max(LEAST_UPDATES, round(_EPISODES * self.budgets[-1] / episodes))
        return dataclasses.replace(config, updates=updates)

    def make(self, tell: Callable[[], None]) -> Asked:
        """See `Run`."""
        found = in_own_process(measure, self)
        tell()
        return found

    def read(self, kept: Mapping[str, Any]) -> Asked:
        """See `Run`."""
        return Asked(**{**kept, "chosen": [Best(**each) for each in kept["chosen"]]})


def measure(run: AskingRun) -> Asked:
    """Make a run in this process, which should be a new one."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    source = source_of(run.subject)
    is_trained = run.row in LEARNERS
    machine = OnDemand(source, run.executor, is_at_end=is_trained)
    real_steps = _train(run, machine) if is_trained else _search(run, machine)
    return Asked(
        [machine.best_after(budget) for budget in run.budgets],
        len(machine.asked),
        real_steps,
        time.perf_counter() - began,
        machine.seconds,
    )


def _search(run: AskingRun, machine: OnDemand) -> int:
    graph, library, cost = machine.source.program.graph, load_library(), cost_of(typical_prices(run.executor))
    rng = np.random.default_rng(run.seed)
    if run.row in FREE:
        asking = FREE[run.row](graph, library, cost, rng)
    else:
        space = pool(graph, library, cost, round(_POOL * run.budgets[-1]))
        asking = of_pool(OF_POOL[run.row](space, cost, rng), space)
    ask(asking, machine, run.budgets[-1])
    return 0


def _train(run: AskingRun, machine: OnDemand) -> int:
    given: dict[str, Any] = {"prices": typical_prices(run.executor), "graph": machine.source.program.graph}
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(run.config, Path(folder), answers=machine, **given)
        for _ in trainer.updates():
            if len(machine.asked) >= run.budgets[-1]:
                break
    return trainer.real_steps
