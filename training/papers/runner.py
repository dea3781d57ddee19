"""Experiment runs: functions with results cached in JSON files, so that no run is made twice."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from torchrlopt.errors import OptionsError
from torchrlopt.machine.device import cpu_name, num_usable_cores
from torchrlopt.processes import end_with_parent
from torchrlopt.storage.files import write_whole
from torchrlopt.substitutions import load_library
from training.device.prices import typical_prices
from training.progress import progress_bar

RUNS = "runs"  # folder of the files
MEASURING = "measuring"  # lock held during timing
MEASURED = ("torch", "onnxruntime")  # the packages of `EXECUTORS`
EXECUTORS = ("eager", "onnxruntime")
MINUTES = 30.0  # limit for one training of a row
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

Result = dict[str, Any]
"""Result of a run: any JSON value."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """The size of an experiment.

    Attributes:
        share: of the paper's training or search steps.
        seeds: runs of each setting.
        graphs: to train rows on; by default those of the share.
        minutes: limit for one training of a row.
    """

    share: float
    seeds: int
    graphs: tuple[str, ...] = ()
    minutes: float = MINUTES

    def steps(self, of_paper: int, least: int = 10) -> int:
        """The paper's number of steps, scaled."""
        return max(least, round(self.share * of_paper))


@dataclasses.dataclass(frozen=True)
class Work:
    """What a run's function receives in addition to its arguments.

    Attributes:
        folder: for a training that can be resumed after a kill; kept as long as the run's file keeps its
            name.
        needed: results of the runs that it needs.
        folders: of these runs.
    """

    folder: Path
    needed: Sequence[Result] = ()
    folders: Sequence[Path] = ()


@dataclasses.dataclass(frozen=True)
class Kind:
    """A function that can be run; calling the kind describes a run without executing it.

    Attributes:
        name: the function's module and name.
        function: takes a `Work` and keyword arguments that JSON can represent.
        depends: maps the arguments to what results depend on in addition (prices, versions, data).
        is_measurement: whether it measures times, so that no other run may be made concurrently.
        in_own_process: whether it needs a new process with one thread: threads of one runtime slow down
            another.
    """

    name: str
    function: Callable[..., Result]
    depends: Callable[..., Any]
    is_measurement: bool
    in_own_process: bool

    def __call__(self, *needs: Run, **given: Any) -> Run:
        """Describe a run."""
        return Run(self.name, tuple(sorted(given.items())), needs)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run; equal ones are the same run.

    Attributes:
        name: module and name of its kind.
        given: its arguments.
        needs: runs whose results it reads; they are made first.
    """

    name: str
    given: tuple[tuple[str, Any], ...]
    needs: tuple[Run, ...] = ()

    @property
    def kind(self) -> Kind:
        """The kind with this run's name."""
        found: Kind = pkgutil.resolve_name(self.name)
        return found

    @property
    def title(self) -> str:
        """Human-readable title, and the prefix of its file name."""
        told = [str(value) for _, value in self.given if isinstance(value, str | int | float)]
        return "-".join([self.name.partition(":")[2], *filter(None, told)]).replace(" ", "")[:100]


def kind(
    depends: Callable[..., Any] = lambda **given: "",
    *,
    name: str = "",
    measures: bool = False,
    own_process: bool = False,
) -> Callable[[Callable[..., Result]], Kind]:
    """Decorator that makes a function a `Kind` with these attributes; the name defaults to the function's."""

    def made(function: Callable[..., Result]) -> Kind:
        place = f"{function.__module__}:{name or function.__name__}"
        return Kind(place, function, depends, measures, own_process)

    return made


def priced(*packages: str, executor: str = "eager", device: str = "cpu", **others: Any) -> str:
    """Dependencies of results on the library, the prices of an executor and versions of packages."""
    del others
    return f"{load_library().hash} {typical_prices(executor, device).to_json()} {versions(*packages)}"


def measured(**given: Any) -> str:
    """Dependencies of graph times."""
    return priced(*MEASURED, **given)


def path_of(run: Run, out: Path) -> Path:
    """The file of a run; its name hashes everything that the results depend on.

    This includes PyTorch's version, the processor for measurements, and the results of the runs that it
    needs: before those are made the path is a different one, which is never written.
    """
    given = dict(run.given)
    told = [run.name, given, run.kind.depends(**given), torch.__version__, _digests(run.needs, out)]
    if run.kind.is_measurement:
        told.append(cpu_name())  # times from two machines are not comparable
    code = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]
    return out / RUNS / f"{run.title}-{code}.json"


def folder_of(run: Run, out: Path) -> Path:
    """Folder for the state of an unfinished run."""
    path = path_of(run, out)
    return path.with_name(path.name.removesuffix(".json"))


def _digests(runs: Sequence[Run], out: Path) -> list[str]:
    paths = [path_of(run, out) for run in runs]
    return [hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else path.name for path in paths]


def read(run: Run, out: Path) -> Result:
    """The result of a finished run; "made" holds its machine, seconds and CPU share.

    Raises:
        OptionsError: its file is damaged.
        FileNotFoundError: the run has not been made.
    """
    path = path_of(run, out)
    try:
        found: Result = json.loads(path.read_text(encoding="utf-8"))
        if not {"machine", "seconds", "cpu_share"} <= found["made"].keys():
            raise KeyError("made")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionsError("the file of a run is damaged; remove it", where=str(path)) from error
    return found


def with_needs(runs: Sequence[Run]) -> list[Run]:
    """Runs and their transitive dependencies in topological order, without duplicates."""
    ordered: dict[Run, None] = {}
    for run in runs:
        ordered |= dict.fromkeys([*with_needs(run.needs), run])
    return list(ordered)


def make_all(runs: Sequence[Run], out: Path, jobs: int = 1) -> None:
    """Make all missing runs, some at the same time, with a progress bar."""
    todo = [run for run in with_needs(runs) if not path_of(run, out).exists()]
    with progress_bar() as progress:
        bar = progress.add_task("runs", total=max(1, len(todo)))
        while together := _ready(todo, out) if jobs > 1 else []:
            with new_processes(jobs) as pool:
                futures = {pool.submit(make, run, out): run for run in together}
                try:
                    for future in as_completed(futures):
                        future.result()
                        progress.update(bar, advance=1, description="several runs")
                except BaseException:  # including Ctrl-C: pending runs are cancelled
                    pool.shutdown(cancel_futures=True)
                    raise
        for run in todo:
            if not path_of(run, out).exists():
                progress.update(bar, description=run.title)
                make(run, out)
                progress.advance(bar)


def _ready(todo: Sequence[Run], out: Path) -> list[Run]:
    """Runs that can be made concurrently now, because their dependencies exist."""
    left = [run for run in todo if not run.kind.is_measurement and not path_of(run, out).exists()]
    return [run for run in left if all(path_of(need, out).exists() for need in run.needs)]


def make(run: Run, out: Path) -> None:
    """Make one run and store its result, unless another command has made it meanwhile.

    All runs compute on one thread, as workers do. Commands that share a folder wait for each other's runs,
    and no two of them measure at the same time.
    """
    path = path_of(run, out)
    with lock(out, MEASURING if run.kind.is_measurement else path.stem):
        if not path.exists():
            needed = [read(need, out) for need in run.needs]
            work = Work(folder_of(run, out), needed, [folder_of(need, out) for need in run.needs])
            torch.set_num_threads(1)
            began, cpu_began = time.perf_counter(), time.process_time()
            if run.kind.in_own_process:
                found = in_own_process(run, work)
            else:
                found = run.kind.function(work, **dict(run.given))
            seconds = time.perf_counter() - began
            share = (time.process_time() - cpu_began) / seconds
            made = {"machine": this_machine(), "seconds": seconds, "cpu_share": share}
            write_whole(path, json.dumps({**found, "made": made}).encode())


def lock(out: Path, name: str) -> FileLock:
    """Lock for what only one process may do at a time in a folder of experiments; others wait."""
    folder = out / RUNS / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / name)


@contextlib.contextmanager
def new_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """New processes, which end with this one."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=end_with_parent) as pool:
        yield pool


def in_own_process(run: Run, work: Work) -> Result:
    """Call the function of a run in a new process with one thread; returns its result."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)  # inherited by new processes
    try:
        with new_processes(1) as pool:
            return pool.submit(_call, run, work).result()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _call(run: Run, work: Work) -> Result:
    torch.set_num_threads(1)
    return run.kind.function(work, **dict(run.given))


def this_machine() -> str:
    """Description of the machine that makes the runs."""
    cores = num_usable_cores()
    return f"{cores} {'core' if cores == 1 else 'cores'} of an {cpu_name()}, PyTorch {torch.__version__}"


def versions(*packages: str) -> str:
    """Versions of the packages that are installed."""
    found = []
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


def minutes_of(results: Sequence[Mapping[str, Any]]) -> float:
    """Total minutes of some runs; for one that was killed, only the last part counts."""
    return sum(float(each["made"]["seconds"]) for each in results) / 60
