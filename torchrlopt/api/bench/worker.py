"""The process of one contestant: `python -m torchrlopt.api.bench.worker MODEL NAME THREADS FOLDER OPTIONS`.

Commands and replies are JSON, one per line: `{"do": "prepare"}`, `{"do": "time", "seconds": 0.2}`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchrlopt.api.bench.contestants import BASE, Model, Run, load, make
from torchrlopt.torch_private.pytree import tree_leaves

#: Rest before a round: threads of the previous one may spin for some 20 ms before they sleep.
_REST_S = 0.05
#: Warm-up calls before the clock starts, since the others have just evicted the caches.
_NUM_WARM_UP = 2
#: Least and most timed calls per round.
_MIN_CALLS, _MAX_CALLS = 3, 200


def time_round(call: Run, seconds: float) -> list[float]:
    """Time calls one by one until `seconds` have passed; return the milliseconds of each."""
    time.sleep(_REST_S)
    for _ in range(_NUM_WARM_UP):
        call()
    gc.collect()
    gc.disable()
    times_ms: list[float] = []
    start = now = time.perf_counter()
    while len(times_ms) < _MIN_CALLS or (now - start < seconds and len(times_ms) < _MAX_CALLS):
        before = time.perf_counter()
        call()
        now = time.perf_counter()
        times_ms.append((now - before) * 1e3)
    gc.enable()
    return times_ms


class Contestant:
    """Executes commands.

    Args:
        model: by name.
        name: of the contestant.
        folder: for its files and outputs.
        options: of torchrlopt.
    """

    def __init__(self, model: str, name: str, folder: Path, options: dict[str, Any]) -> None:
        self._name, self._folder, self._options = name, folder, options
        self._model = load(model)
        self._call: Run | None = None

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute one command and return the reply."""
        if command["do"] == "prepare":
            self._warm()
            start = time.perf_counter()
            self._call, kept = make(self._name, self._model, self._folder, self._options)
            found = self._call()
            first_call_s = time.perf_counter() - start
            torch.save(_tensors(found), self._folder / "outputs.pt")
            return {"first_call_s": first_call_s, "kept": kept()}
        assert self._call is not None, "it is prepared first"
        return {"times_ms": time_round(self._call, command["seconds"])}

    def _warm(self) -> None:
        """Exclude imports, and what a compiler prepares once per machine, from this model's first call."""
        if self._name != BASE:
            folder = self._folder / "warm"
            folder.mkdir()
            make(self._name, Model(torch.nn.ReLU().eval(), (torch.ones(8),)), folder)[0]()
            # Dynamo remembers the sizes it has seen, and would make this model's dynamic.
            torch.compiler.reset()


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(leaf) for leaf in tree_leaves(outputs) if hasattr(leaf, "shape")]


def serve(obey: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Execute commands from standard input until it is closed."""
    # Reserve the real standard output for replies; what libraries print goes to the log.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = obey(json.loads(line))
        except Exception as error:  # noqa: BLE001  # any error is this command's result: the rest goes on
            traceback.print_exc()
            text = "".join(traceback.format_exception_only(error)).split("Set TORCHDYNAMO_VERBOSE")[0]
            reply = {"error": " ".join(text.split())[:500]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    """Serve the contestant named on the command line, which is created at the first command."""
    model, name, threads, folder, options = sys.argv[1:]
    torch.set_num_threads(int(threads))
    made: list[Contestant] = []

    def obey(command: dict[str, Any]) -> dict[str, Any]:
        if not made:
            made.append(Contestant(model, name, Path(folder), json.loads(options)))
        return made[0].obey(command)

    serve(obey)


if __name__ == "__main__":
    main()
