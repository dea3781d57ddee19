"""A run of the thesis: learning to optimise a function, collected by some workers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from training.experiments.runs import Run, Workplace
from training.learn_to_optimise.training_run import LEARNER, Outcome, Spec, Workers, train

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
            f"-{self.workers.kind}{self.workers.count}{timed}-{_learner()}"
        )

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
        return Outcome(**kept)


def workers_of(place: Workplace, count: int) -> Workers:
    """Of a distributed run."""
    return Workers(place.collector, count, place.ray)


def _learner() -> str:
    """Names how all runs learn: those of other settings are other runs."""
    return hashlib.sha256(repr(LEARNER).encode()).hexdigest()[:8]
