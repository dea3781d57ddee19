"""Workers that are Ray actors (extra `ray`), on this machine or on a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError

from torchrlopt.errors import OptionsError
from training.collectors.crews import Crew, Seat
from training.collectors.worker import Task, Worker

PATIENCE_S = 30.0  # wait for occupied processors: those of finished actors become free soon


def _free_processors(wanted: int) -> int:
    """Number of free processors, as soon as there are as many as wanted or after `PATIENCE_S`."""
    begin = time.monotonic()
    while True:
        free = int(ray.available_resources().get("CPU", 0))
        if free >= wanted or time.monotonic() - begin > PATIENCE_S:
            return free
        time.sleep(0.1)


class _RaySeat(Seat):
    def __init__(self, task: Any) -> None:
        self._actor = ray.remote(num_cpus=1)(Worker).remote(task)

    def load(self, state: Any) -> Future[None]:
        return self._actor.load.remote(state).future()

    def play(self, keys: Sequence[Any]) -> Future[bytes]:
        return self._actor.play.remote(keys).future()

    def close(self) -> None:
        ray.kill(self._actor)


class RayActors(Crew):
    """Ray actors with one processor each.

    The first crew starts Ray if it is not running; that crew also shuts it down.

    Args:
        task: what the workers do.
        workers: number of processors of a local Ray.
        address: of a cluster whose machines have this repository and its requirements, in the form that
            `ray.init` takes; empty for a local Ray on this machine.

    Raises:
        OptionsError: the cluster has fewer processors than workers, or others occupy them.
    """

    lost = (RayActorError, ObjectLostError)

    def __init__(self, task: Task, workers: int, address: str = "") -> None:
        super().__init__(task)
        self._is_own = not ray.is_initialized()
        if self._is_own:
            here = {} if address else {"num_cpus": workers, "include_dashboard": False}
            ray.init(address=address or "local", log_to_driver=False, **here)
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < workers:  # Ray would wait forever for an actor's processor
            if self._is_own:
                ray.shutdown()
            raise OptionsError("Ray has too few processors", expected=f"{workers}, one a worker", got=there)
        free = _free_processors(workers)
        if free < workers:
            if self._is_own:
                ray.shutdown()
            told = f"{workers}, one a worker, in {PATIENCE_S:g} s"
            raise OptionsError("Ray's processors are taken by others", expected=told, got=free)
        self._shared_task = ray.put(task)

    def hire(self) -> Seat:
        """See `Crew`."""
        return _RaySeat(self._shared_task)

    def share(self, state: bytes) -> Any:
        """Put the state into Ray's object store, once for all workers of a machine."""
        return ray.put(state)

    def close(self) -> None:
        """See `Crew`."""
        if self._is_own:
            ray.shutdown()
