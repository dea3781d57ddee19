"""The process of one peer on one model: obeys commands on its standard input until that closes.

Between commands it waits in a blocking read and uses no processor, so that peers can take turns. Commands and
replies are JSON, one a line: `{"do": "prepare"}`, `{"do": "time", "seconds": 0.2}`, `{"do": "peak"}`,
`{"do": "kernels"}`, `{"do": "reference"}`. Started by `baselines.peers.process`, as
`python -m baselines.peers.worker CASE FOLDER`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from baselines.errors import one_line
from baselines.peers.case import Case
from baselines.peers.kernel_times import kernel_times
from baselines.peers.memory import peak_mb
from baselines.peers.peer import Peer
from baselines.peers.registry import make_peer

#: Rest before a round: the previous peer's threads may spin for some 20 ms before they sleep.
_REST_S = 0.05
#: Calls before the clock starts, since the other peers have just emptied the caches.
_NUM_WARM_UP = 2
#: A round has at least and at most so many timed calls.
_MIN_CALLS, _MAX_CALLS = 3, 200


def device_peak_mb() -> float:
    """Most memory of the CUDA device that torch has held since the start, in MB of 10^6 bytes."""
    import torch

    return float(torch.cuda.max_memory_reserved() / 1e6)


def time_round(peer: Peer, seconds: float) -> list[float]:
    """Times calls one by one until `seconds` have passed; returns milliseconds of each."""
    time.sleep(_REST_S)
    for _ in range(_NUM_WARM_UP):
        peer.call()
    gc.collect()
    gc.disable()
    times_ms: list[float] = []
    start = time.perf_counter()
    now = start
    while len(times_ms) < _MIN_CALLS or (now - start < seconds and len(times_ms) < _MAX_CALLS):
        times_ms.append(peer.call_ms())
        now = time.perf_counter()
    gc.enable()
    return times_ms


class Worker:
    """Carries out commands for one case."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        self._folder = folder
        self._peer = make_peer(case, str(folder))

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carries out one command and returns the reply."""
        match command["do"]:
            case "prepare":
                first_call_s = self._peer.first_call()
                np.savez(self._folder / "outputs.npz", *self._peer.outputs())
                return {"first_call_s": first_call_s, "kept": self._peer.kept()}
            case "time":
                return {"times_ms": time_round(self._peer, command["seconds"])}
            case "peak":
                return {"peak_mb": peak_mb() if self._case.device == "cpu" else device_peak_mb()}
            case "kernels":
                return {"kernels": kernel_times(self._peer.call)}
            case "reference":
                np.savez(self._folder / "reference.npz", *self._peer.reference_outputs())
                return {}
            case unknown:
                raise ValueError(f"no command {unknown!r}")


def main() -> None:
    """Reads the case from the command line, then serves commands."""
    # Replies get the real standard output for themselves; what libraries print joins the log.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    worker: Worker | None = None
    for line in sys.stdin:
        try:
            if worker is None:
                worker = Worker(Case(**json.loads(sys.argv[1])), Path(sys.argv[2]))
            reply(worker.obey(json.loads(line)))
        except Exception as error:  # noqa: BLE001  # whatever a peer raises is its result: the rest goes on
            traceback.print_exc()
            reply({"error": one_line(error, 500)})


if __name__ == "__main__":
    main()
