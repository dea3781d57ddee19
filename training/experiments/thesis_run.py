"""A run of the thesis: learning to optimise a function, collected by some workers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from training.experiments.runs import Run, Workplace, of_cluster
from training.learn_to_optimise.episodes import POOL
from training.learn_to_optimise.training_run import (
    EVALUATE_EVERY,
    LEARNER,
    PARAMETERS,
    STARTS,
    Outcome,
    Spec,
    Workers,
    train,
)
from training.samplers import HOMOGENEOUS

NOTE = (
    "What the thesis does not say (networks, learning rate, discount) is chosen in\n"
    "`training/learn_to_optimise/`."
)


@dataclasses.dataclass(frozen=True)
class ThesisRun(Run[Outcome]):
    """See `Run`.

    Attributes:
        spec: what its results depend on.
        workers: who collects.
        is_timed: whether its times are of interest.
    """

    spec: Spec
    workers: Workers = dataclasses.field(default_factory=lambda: Workers("in_process"))
    is_timed: bool = False

    @property
    def name(self) -> str:
        """See `Run`."""
        task, spec = self.spec.task, self.spec
        drivers = f"{task.drivers}x{task.episodes}x{task.steps}"
        timed = "-timed" if self.is_timed else ""
        return (
            f"{task.function}-{task.sampler}-{drivers}-{spec.updates}-seed{spec.seed}"
            f"-{self.workers.kind}{self.workers.count}{timed}"
        )

    @property
    def beside(self) -> str:
        """See `Run`."""
        told = f"{LEARNER.settings()} {HOMOGENEOUS} {POOL} {EVALUATE_EVERY} {PARAMETERS} {STARTS}"
        return f"{told} {of_cluster(self.workers.kind, self.workers.address)}" if self.is_timed else told

    @property
    def num_steps(self) -> int:
        """Updates."""
        return self.spec.updates

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return self.is_timed

    def make(self, tell: Callable[[], None]) -> Outcome:
        """See `Run`."""
        return train(self.spec, self.workers, tell)

    def read(self, kept: Mapping[str, Any]) -> Outcome:
        """See `Run`."""
        errors = [math.nan if each is None else each for each in kept["errors"]]
        return Outcome(**{**kept, "errors": errors})


def workers_of(place: Workplace, count: int) -> Workers:
    """Of a distributed run."""
    return Workers(place.collector, count, place.ray)
