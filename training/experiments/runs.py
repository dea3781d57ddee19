"""Runs of experiments, each kept as a file when it has ended, so that none is made twice."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from filelock import FileLock

from torchrlopt.errors import OptionsError
from torchrlopt.machine.device import cpu_name, num_usable_cores
from torchrlopt.processes import end_with_parent
from torchrlopt.storage.files import write_whole
from training.config import Config
from training.progress import progress_bar

RUNS = "runs"  # folder of the files
MEASURING = "measuring"  # the lock of what is timed
EXECUTORS = ("eager", "onnxruntime")  # that most runs measure in
MEASURED = ("torch", "onnxruntime")  # the packages of these
MINUTES = 30.0  # most of one training of a row, if nothing else is said
UNKNOWN_MACHINE = "a machine that was not noted"
OutcomeT = TypeVar("OutcomeT")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of an experiment is made.

    Attributes:
        share: of the paper's steps, of training or of search.
        seeds: runs of each setting.
        graphs: that rows are trained on; by default those of the share.
        minutes: most of one training of a row.
    """

    share: float
    seeds: int
    graphs: tuple[str, ...] = ()
    minutes: float = MINUTES

    def steps(self, of_paper: int) -> int:
        """Steps in place of those of the paper."""
        return max(10, round(self.share * of_paper))


@dataclasses.dataclass(frozen=True)
class Workplace:
    """Where and by whom runs are made. Times depend on it, and with them trainings that the clock ends.

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


class Run(abc.ABC, Generic[OutcomeT]):
    """A run of an experiment: a frozen dataclass of what its results depend on, for pickle and as a key."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What it is, for people, as the beginning of the name of a file."""

    @property
    def beside(self) -> str:
        """What its results depend on beside its fields: data, prices, versions, constants, as text."""
        return ""

    @property
    def num_steps(self) -> int:
        """How often `make` tells that it went on, at most."""
        return 1

    @property
    def is_measurement(self) -> bool:
        """Whether its times are of interest: then no other run of the command is made meanwhile.

        Other commands measure nothing in the same folder meanwhile; what else they do cannot be known.
        """
        return False

    @property
    def needs(self) -> Sequence[Run[Any]]:
        """Runs whose outcomes `make` reads from their files: they are made before."""
        return ()

    @abc.abstractmethod
    def make(self, tell: Callable[[], None]) -> OutcomeT:
        """Make it.

        Args:
            tell: called `num_steps` times at most.

        Returns:
            A dataclass of what JSON can hold.
        """

    @abc.abstractmethod
    def read(self, kept: Mapping[str, Any]) -> OutcomeT:
        """The outcome of its fields, as JSON gives them back."""


@dataclasses.dataclass(frozen=True)
class Finished(Generic[OutcomeT]):
    """A run that has ended.

    Attributes:
        outcome: of it.
        cpu_share: of the time that it took, for which this process had a core; less than 1 where other
            processes wanted the core, or where this one waited for its workers.
        machine: that made it, in words; not always the one that reports it.
        seconds: that it took, on the clock; of a run that was killed and went on, of the last part.
    """

    outcome: OutcomeT
    cpu_share: float
    machine: str
    seconds: float = 0.0


class AllFinished:
    """Runs that have ended, by run."""

    def __init__(self, found: Mapping[Run[Any], Finished[Any]]) -> None:
        self._found = found

    def __getitem__(self, run: Run[OutcomeT]) -> Finished[OutcomeT]:
        if run not in self._found:
            there = ", ".join(sorted(each.name for each in self._found)) or "none"
            raise KeyError(f"{run.name} has not been made; is it among the experiment's runs? Made: {there}")
        return self._found[run]

    def outcome(self, run: Run[OutcomeT]) -> OutcomeT:
        """What came out of a run."""
        return self[run].outcome

    def machines(self, runs: Sequence[Run[Any]]) -> list[str]:
        """Those that made some runs and what these need, each once."""
        return list(dict.fromkeys(self[run].machine for run in with_needs(runs)))

    def minutes(self, runs: Sequence[Run[Any]]) -> float | None:
        """That some runs and what these need took, each by itself; None where one has not noted it."""
        seconds = [self[run].seconds for run in with_needs(runs)]
        return sum(seconds) / 60 if all(seconds) else None


def path_of(run: Run[Any], out: Path) -> Path:
    """The file of a run: its name, and a digest of all that its results depend on.

    PyTorch's version is among it, the processor where it measures, and what came out of the runs that it
    needs: before these are made it has another file, which nobody writes.
    """
    depends = [torch.__version__, _depends_on(run), _outcomes_of(run.needs, out)]
    if run.is_measurement:  # times of two machines make no ratio
        depends.append(cpu_name())
    told = json.dumps(depends, sort_keys=True)
    code = hashlib.sha256(told.encode()).hexdigest()[:8]
    return out / RUNS / f"{run.name}-{code}.json"


def _outcomes_of(runs: Sequence[Run[Any]], out: Path) -> list[str]:
    """Digests of what came out of runs; empty where one has not ended."""
    paths = [path_of(run, out) for run in runs]
    if not all(path.exists() for path in paths):
        return []
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def _depends_on(value: Any) -> Any:
    """What two equal runs have in common, as JSON can hold it."""
    if isinstance(value, Config):
        return dataclasses.replace(value, ray="").settings()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # What is at its default is left out of runs: a field that is new does not make them all anew, and a
        # default that changes keeps the old ones: never change it, take another field.
        fields = [
            field.name
            for field in dataclasses.fields(value)
            if field.compare and not (isinstance(value, Run) and getattr(value, field.name) == field.default)
        ]
        told = [type(value).__name__, {each: _depends_on(getattr(value, each)) for each in fields}]
        return [told[0], value.name, value.beside, told[1]] if isinstance(value, Run) else told
    return [_depends_on(each) for each in value] if isinstance(value, tuple | list) else repr(value)


def finished(runs: Sequence[Run[Any]], out: Path) -> AllFinished:
    """Those that have ended."""
    found = {}
    for run in runs:
        path = path_of(run, out)
        if path.exists():
            given = _kept(path)
            try:
                outcome = run.read(given["outcome"])
            except (KeyError, TypeError, ValueError) as error:
                raise _damaged(path) from error
            found[run] = Finished(
                outcome,
                given["cpu_share"],
                given.get("machine", UNKNOWN_MACHINE),
                given.get("seconds", 0.0),
            )
    return AllFinished(found)


def _kept(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path) from error
    if not isinstance(found, dict) or not {"outcome", "cpu_share"} <= found.keys():
        raise _damaged(path)
    return found


def _damaged(path: Path) -> OptionsError:
    return OptionsError("the file of a run is damaged; remove it", where=str(path))


def make_all(runs: Sequence[Run[Any]], place: Workplace) -> AllFinished:
    """All runs, those that are there already taken from their files; with a progress bar."""
    (place.out / RUNS).mkdir(parents=True, exist_ok=True)
    runs = with_needs(runs)
    todo = [run for run in runs if not path_of(run, place.out).exists()]
    with progress_bar() as progress:
        bar = progress.add_task("runs", total=max(1, sum(run.num_steps for run in todo)))
        while together := _ready(todo, place):
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(place.jobs, mp_context=context, initializer=end_with_parent) as pool:
                futures = {pool.submit(make, run, place.out): run for run in together}
                try:
                    for future in as_completed(futures):
                        future.result()
                        progress.update(bar, advance=futures[future].num_steps, description="several runs")
                except BaseException:  # Ctrl-C among them: what waits is not begun
                    pool.shutdown(cancel_futures=True)
                    raise
        for run in todo:
            if not path_of(run, place.out).exists():
                progress.update(bar, description=run.name)
                before = progress.tasks[bar].completed
                make(run, place.out, lambda: progress.advance(bar))
                progress.update(bar, completed=before + run.num_steps)
    return finished(runs, place.out)


def with_needs(runs: Sequence[Run[Any]]) -> list[Run[Any]]:
    """Runs and all that they need, each once, those that are needed first."""
    ordered: dict[Run[Any], None] = {}
    for run in runs:
        ordered |= dict.fromkeys([*with_needs(run.needs), run])
    return list(ordered)


def _ready(todo: Sequence[Run[Any]], place: Workplace) -> list[Run[Any]]:
    """What may be made at the same time now: what it needs is there. Nothing with one job."""
    left = [run for run in todo if not run.is_measurement and not path_of(run, place.out).exists()]
    found = [run for run in left if all(path_of(need, place.out).exists() for need in run.needs)]
    return found if place.jobs > 1 else []


def make(run: Run[Any], out: Path, tell: Callable[[], None] = lambda: None) -> None:
    """Make one run and keep it, unless another command has made it meanwhile.

    All of them compute on one thread, as workers do. Commands that share a folder wait for each other's run,
    and no two of them measure at the same time.
    """
    path = path_of(run, out)
    with lock(out, MEASURING if run.is_measurement else path.stem):
        if not path.exists():
            _make(run, path, tell)


def lock(out: Path, name: str) -> FileLock:
    """What only one process does at a time in a folder of experiments; others wait."""
    folder = out / RUNS / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / name)


def _make(run: Run[Any], path: Path, tell: Callable[[], None]) -> None:
    torch.set_num_threads(1)
    began, cpu_began = time.perf_counter(), time.process_time()
    outcome = run.make(tell)
    seconds = time.perf_counter() - began
    cpu_share = (time.process_time() - cpu_began) / seconds
    found = Finished(outcome, cpu_share, this_machine(), seconds)
    told = json.dumps(_without_nan(dataclasses.asdict(found)), allow_nan=False)
    write_whole(path, told.encode())


def this_machine() -> str:
    """What runs are made on, in words."""
    cores = num_usable_cores()
    return f"{cores} {'core' if cores == 1 else 'cores'} of an {cpu_name()}, PyTorch {torch.__version__}"


def versions(*packages: str) -> str:
    """Of packages that are measured, those that are installed."""
    found = []
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


def of_cluster(kind: str, address: str) -> str:
    """What times of workers depend on beside the processor; data do not."""
    return f"{address} {versions('ray')}" if kind == "ray" else ""


def _without_nan(value: Any) -> Any:
    """The same with null for what is no finite number, which JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    return [_without_nan(each) for each in value] if isinstance(value, list | tuple) else value
