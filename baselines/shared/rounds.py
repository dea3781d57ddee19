"""Contestants in separate processes, which alternate round by round.

Load on the machine then disturbs all of them alike, and memory, threads and settings are not shared.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrlopt.api.bench.process import Worker, WorkerError

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Contestant:
    """An object created and called in a separate process.

    Attributes:
        name: in tables.
        target: "module:Class"; its methods take and return JSON. It is passed `folder`, an empty one.
        arguments: its other arguments.
        threads: of its kernels.
    """

    name: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1


class Runner:
    """The process of a contestant, until it fails.

    Args:
        contestant: what it runs.
        folder: an empty folder for its files.
        caches: folder of the compilers' caches.
        timeout_s: longest wait for an answer.

    Attributes:
        contestant: see above.
        folder: see above.
        reason: why it failed; empty if it has not.
    """

    def __init__(self, contestant: Contestant, folder: Path, caches: Path, timeout_s: float) -> None:
        self.contestant, self.folder, self.reason = contestant, folder, ""
        threads = str(contestant.threads)
        # OpenMP threads wait as by default. Sleeping at once (OMP_WAIT_POLICY=PASSIVE) would spare the others
        # milliseconds of spinning, but was observed to make eager PyTorch itself up to 1.8 times slower.
        environment = os.environ | {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": threads,
            "TORCHRLOPT_CACHE_DIR": str(caches / "torchrlopt"),
            "HF_HUB_OFFLINE": "1",
        }
        # Installed packages come with bytecode; let the first process keep what it compiles here as well.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "baselines.shared.worker", contestant.target]
        command += [json.dumps(dict(contestant.arguments)), str(folder)]
        self._worker = Worker(command, environment, folder, timeout_s)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Call a method; if that or an earlier call has failed, return None and end the process."""
        if self.reason:
            return None
        try:
            return self._worker.ask(do, **arguments)["result"]
        except WorkerError as error:
            self.fail(str(error))
            return None

    def fail(self, reason: str) -> None:
        """Mark it as failed; later results do not count."""
        self.reason = reason
        self.close()

    def close(self) -> None:
        """End the process and all processes that it started."""
        self._worker.close()


@contextlib.contextmanager
def started(
    contestants: Sequence[Contestant], caches: Path, timeout_s: float = 600.0
) -> Iterator[list[Runner]]:
    """Start a process for each, with separate caches by name; all have ended when the context exits."""
    with contextlib.ExitStack() as stack:
        runners = []
        for contestant in contestants:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            runner = Runner(contestant, folder, caches / contestant.name, timeout_s)
            stack.callback(runner.close)
            runners.append(runner)
        yield runners


def alternated(
    runners: Sequence[Runner], rounds: int, do: str, **arguments: Any
) -> Iterator[tuple[int, Runner, Any]]:
    """Call a method of each in turn, round by round; yields round number, runner and result.

    Those that fail are skipped from then on.
    """
    for number in range(rounds):
        for runner in runners:
            result = runner.ask(do, **arguments)
            if not runner.reason:
                yield number, runner, result


def alternated_us(
    ways: Mapping[str, Callable[[], Any]], rounds: int, calls: int = 1, rest_s: float = 0.0
) -> dict[str, list[float]]:
    """Microseconds of each call of alternating functions in this process.

    Each round has another order: what a function finds in caches and on the heap depends on the one before.

    Args:
        ways: the functions by name.
        rounds: number of rounds.
        calls: calls of each function per round.
        rest_s: rest before each function; threads of the previous one may spin for some milliseconds.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    order, rng = list(ways), random.Random(0)
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            time.sleep(rest_s)
            for _ in range(calls):
                start = time.perf_counter_ns()
                ways[name]()
                found[name].append((time.perf_counter_ns() - start) / 1e3)
    return found
