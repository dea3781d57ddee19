"""Runs of experiments, each kept as a file when it has ended, so that none is made twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from torchrlopt.storage.directory import write_whole
from training.learn_to_optimise.training_run import LEARNER, Outcome, Spec, Workers, train
from training.progress import progress_bar

RUNS = "runs"  # folder of the files


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of an experiment is made.

    Attributes:
        share: of the paper's training steps.
        seeds: runs of each setting.
    """

    share: float
    seeds: int

    def steps(self, of_paper: int) -> int:
        """Training steps in place of those of the paper."""
        return max(10, round(self.share * of_paper))


@dataclasses.dataclass(frozen=True)
class Workplace:
    """Where and by whom runs are made; results do not depend on it, but for the times.

    Attributes:
        out: folder.
        jobs: runs at the same time.
        collector: kind of the workers of distributed runs.
        ray: address of a cluster for them.
    """

    out: Path
    jobs: int = 1
    collector: str = "processes"
    ray: str = ""

    def workers(self, count: int) -> Workers:
        """Of a distributed run."""
        return Workers(self.collector, count, self.ray)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of an experiment.

    Attributes:
        spec: what its results depend on.
        workers: who collects.
        is_timed: whether its times are of interest: then no other run is made meanwhile.
    """

    spec: Spec
    workers: Workers = dataclasses.field(default_factory=lambda: Workers("in_process"))
    is_timed: bool = False

    @property
    def name(self) -> str:
        """Says everything that distinguishes it from other runs."""
        task, spec = self.spec.task, self.spec
        drivers = f"{task.drivers}x{task.episodes}x{task.steps}"
        timed = "-timed" if self.is_timed else ""
        return (
            f"{task.function}-{task.sampler}-{drivers}-{spec.updates}-seed{spec.seed}"
            f"-{self.workers.kind}{self.workers.count}{timed}-{_learner()}"
        )


def _learner() -> str:
    """Names how all runs learn: those of other settings are other runs."""
    return hashlib.sha256(repr(LEARNER).encode()).hexdigest()[:8]


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that has ended.

    Attributes:
        outcome: of it.
        cpu_share: of the time that it took, for which this process had a core; less than 1 where other
            processes wanted the core, or where this one waited for its workers.
    """

    outcome: Outcome
    cpu_share: float


def path_of(run: Run, out: Path) -> Path:
    """The file of a run."""
    return out / RUNS / f"{run.name}.json"


def finished(runs: Sequence[Run], out: Path) -> dict[Run, Finished]:
    """Those that have ended."""
    found = {}
    for run in runs:
        path = path_of(run, out)
        if path.exists():
            given = json.loads(path.read_text(encoding="utf-8"))
            found[run] = Finished(Outcome(**given["outcome"]), given["cpu_share"])
    return found


def make_all(runs: Sequence[Run], place: Workplace) -> Mapping[Run, Finished]:
    """All runs, those that are there already taken from their files; with a progress bar."""
    (place.out / RUNS).mkdir(parents=True, exist_ok=True)
    todo = [run for run in dict.fromkeys(runs) if not path_of(run, place.out).exists()]
    with progress_bar() as progress:
        bar = progress.add_task("runs", total=max(1, sum(run.spec.updates for run in todo)))
        together = [run for run in todo if not run.is_timed] if place.jobs > 1 else []
        if together:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(place.jobs, mp_context=context) as pool:
                futures = {pool.submit(make, run, place.out): run for run in together}
                for future in as_completed(futures):
                    future.result()
                    progress.update(bar, advance=futures[future].spec.updates, description="several runs")
        for run in todo:
            if run not in together:
                progress.update(bar, description=run.name)
                make(run, place.out, lambda: progress.advance(bar))
    return finished(runs, place.out)


def make(run: Run, out: Path, tell: Callable[[], None] = lambda: None) -> None:
    """Make one run and keep it."""
    began, cpu_began = time.perf_counter(), time.process_time()
    outcome = train(run.spec, run.workers, tell)
    cpu_share = (time.process_time() - cpu_began) / (time.perf_counter() - began)
    found = Finished(outcome, cpu_share)
    write_whole(path_of(run, out), json.dumps(dataclasses.asdict(found)).encode())
