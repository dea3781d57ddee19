"""A run that asks what a second core of this machine is worth: the control of all tables of workers.

Virtual cores share caches, memory, clock and sometimes one real core, so that two processes that have nothing
to do with each other do not always compute twice as much as one.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from torchrlopt.processes import end_with_parent
from training.experiments.runs import Run, Scale

_ROUNDS = 50_000  # of the work, in full
_SMALL_SHARE = 0.05  # below it: a hundredth
_WIDTH, _ROWS = 64, 200  # of a layer, and of what it is given: a policy's size


@dataclasses.dataclass(frozen=True)
class CoresOutcome:
    """Seconds of the same work: of one process, and of the slower one of two at the same time."""

    alone_seconds: float
    together_seconds: float

    @property
    def gain(self) -> float:
        """How many times as much two processes compute in the same time as one."""
        return 2 * self.alone_seconds / self.together_seconds


@dataclasses.dataclass(frozen=True)
class CoresRun(Run[CoresOutcome]):
    """See `Run`.

    Attributes:
        repetition: another time of the same measurement.
        rounds: of the work.
    """

    repetition: int
    rounds: int

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"cores-{self.rounds}-{self.repetition}"

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    def make(self, tell: Callable[[], None]) -> CoresOutcome:
        """See `Run`."""
        context = multiprocessing.get_context("spawn")
        # A pool each: one pool might give both pieces of work to the same process.
        pools = [ProcessPoolExecutor(1, mp_context=context, initializer=end_with_parent) for _ in range(2)]
        try:
            for begun in [pool.submit(seconds_of_work, self.rounds // 10) for pool in pools]:
                begun.result()
            alone = pools[0].submit(seconds_of_work, self.rounds).result()
            together = [pool.submit(seconds_of_work, self.rounds) for pool in pools]
            slower = max(each.result() for each in together)
        finally:
            for pool in pools:
                pool.shutdown(cancel_futures=True)
        tell()
        return CoresOutcome(alone, slower)

    def read(self, kept: Mapping[str, Any]) -> CoresOutcome:
        """See `Run`."""
        return CoresOutcome(**kept)


def seconds_of_work(rounds: int) -> float:
    """What a worker's networks do, small products one after the other, on one thread."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_ROWS, _WIDTH, generator=generator)
    weight = torch.randn(_WIDTH, _WIDTH, generator=generator)
    began = time.perf_counter()
    for _ in range(rounds):
        torch.relu(rows @ weight)
    return time.perf_counter() - began


def cores(scale: Scale) -> list[CoresRun]:
    """One for each repetition of a table of workers."""
    rounds = _ROUNDS // 100 if scale.share < _SMALL_SHARE else _ROUNDS
    return [CoresRun(repetition, rounds) for repetition in range(scale.seeds)]


def control(outcomes: Sequence[CoresOutcome]) -> str:
    """What a report says of them."""
    gain = 2 * min(each.alone_seconds for each in outcomes) / min(each.together_seconds for each in outcomes)
    gains = [each.gain for each in outcomes]
    return (
        f"- Control: two processes that share nothing and only multiply small matrices do {gain:.2f} times "
        f"as much as one here, each at its best ({min(gains):.2f} to {max(gains):.2f} measurement by "
        "measurement). Other work may share the cores better or worse; a gain above 2 is the machine's "
        "unevenness."
    )
