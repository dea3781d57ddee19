"""Starts the process of a peer and talks to it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from baselines.peers.case import Case
from torchrlopt.api.bench.process import Worker
from torchrlopt.api.bench.process import WorkerError as PeerError

__all__ = ["PeerError", "WorkerProcess"]

_ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess(Worker):
    """A `baselines.peers.worker`; stopped when closed.

    Args:
        case: The peer and model that it serves.
        folder: An empty folder for its files.
        caches: Where compilers keep what they have compiled.
        timeout_s: Longest wait for an answer.
    """

    def __init__(self, case: Case, folder: Path, caches: Path, timeout_s: float) -> None:
        own = caches / case.label
        # OpenMP threads wait as by default. Sleeping at once (OMP_WAIT_POLICY=PASSIVE) would spare the
        # others milliseconds of spinning, but was seen to make eager PyTorch itself up to 1.8 times slower.
        environment = os.environ | {
            "OMP_NUM_THREADS": str(case.threads),
            "MKL_NUM_THREADS": str(case.threads),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
            "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": str(case.threads),
            "TORCHRLOPT_CACHE_DIR": str(own / "torchrlopt"),
        }
        command = [sys.executable, "-m", "baselines.peers.worker", json.dumps(asdict(case)), str(folder)]
        super().__init__(command, environment, folder, timeout_s)
