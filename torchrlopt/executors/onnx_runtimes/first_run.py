"""The first session of a graph is opened, and runs, in a process of its own: see `executors/isolation`."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchrlopt.errors import LoweringError
from torchrlopt.executors.isolation import verdicts
from torchrlopt.executors.isolation.isolated_process import IsolatedProcess, Task
from torchrlopt.executors.isolation.tried import tried
from torchrlopt.executors.weights.half_precision import available_bytes

LEAST_S = 120.0
"""Time in which a graph has to be built and run twice: many times what the suite's largest models take."""

ASKED_S = 60.0
"""For a question: imports of the runtime on a busy machine, and nodes without weights."""

BYTES_PER_S = 20e6
"""More time for more weights."""

_SHARE = 0.75
"""Of the memory that is there. The rest is for the program, whose own session comes later."""

_NUM_SIZES = 2
"""Where sizes vary: the check's few rows, and the user's own. What comes later is not tried: the graph would
be built once more for each set of sizes, in the middle of the program's calls."""


class Request(NamedTuple):
    """What a session is made of, without its weights.

    Attributes:
        proto: the model.
        settings: JSON-able, the number of threads among them.
    """

    proto: bytes
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Isolated:
    """A runtime in a process of its own.

    Attributes:
        title: its name, for people.
        package: the Python package.
        module: path of the file that runs there, see `IsolatedProcess`: its `run` makes a session of a
            request and calls it, its `ask` says what the runtime has against a model.
    """

    title: str
    package: str
    module: Path

    def do(
        self, task: Task, doing: str, parts: Mapping[str, Any], data: bytes, is_stored: bool
    ) -> dict[str, Any]:
        """Have a task done, unless it is known how it ends; raises what `isolation.tried` does.

        Args:
            task: what is to be done.
            doing: what that is, for people.
            parts: what the answer depends on, JSON-able.
            data: more of it.
            is_stored: whether answers are looked for and kept on disk.
        """
        version = importlib.metadata.version(self.package)
        known = {"runtime": self.title, "version": version, "what": task.what, **parts}
        key = verdicts.key_of(known, data)
        return tried(_process(self.module), self.title, task, doing, key, is_stored)


@functools.cache
def _process(module: Path) -> IsolatedProcess:
    return IsolatedProcess(module)


@dataclasses.dataclass(frozen=True)
class Asking:
    """Asks a runtime for operators; see `asked.Ask`."""

    isolated: Isolated
    is_stored: bool

    def __call__(self, model: bytes) -> str | None:
        """What the runtime has against a model of a few nodes."""
        memory = _memory(available_bytes())
        task = Task("ask", {}, {"model": np.frombuffer(model, np.uint8)}, ASKED_S, memory)
        answer = self.isolated.do(task, "was asked for operators", {}, model, self.is_stored)
        refusal = answer.get("refusal")
        return None if refusal is None else str(refusal)


Try = Callable[[Task, str, Mapping[str, Any], bytes], object]
"""Has a task done, unless it is known; see `Isolated.do`."""


class FirstRun:
    """Tries a graph before a session of it is opened here; for a set of sizes each.

    Args:
        request: makes what a session is made of, for weights by name.
        tried: does the task.
        varies: whether sizes vary.
    """

    def __init__(
        self, request: Callable[[Mapping[str, torch.Tensor]], Request], tried: Try, varies: bool
    ) -> None:
        self._request = request
        self._tried = tried
        self._num_left = _NUM_SIZES if varies else 1
        self._sizes: set[tuple[torch.Size, ...]] = set()

    @property
    def is_over(self) -> bool:
        """Whether nothing is tried any more."""
        return self._num_left <= 0

    def is_needed(self, feeds: Sequence[torch.Tensor]) -> bool:
        """Whether a call with feeds of these sizes has to be tried."""
        return tuple(each.shape for each in feeds) not in self._sizes

    def run(self, held: Mapping[str, torch.Tensor], feeds: Mapping[str, torch.Tensor]) -> None:
        """Try it.

        Args:
            held: weights by name, contiguous.
            feeds: by name, likewise.

        Raises:
            LoweringError: it crashed, hung, took more memory than there is, or was refused.
            UnsupportedError: no process could be begun.
        """
        request = self._request(held)
        groups = {"held": held, "feeds": feeds}
        arrays = {"model": np.frombuffer(request.proto, np.uint8)}
        header: dict[str, Any] = {"settings": dict(request.settings)}
        shapes = {}
        for kind, tensors in groups.items():
            header[kind] = {name: str(each.dtype) for name, each in tensors.items()}
            shapes[kind] = {name: list(each.shape) for name, each in tensors.items()}
            arrays |= {f"{kind} {name}": _array(each) for name, each in tensors.items()}
        num_bytes = sum(array.nbytes for array in arrays.values())
        available = available_bytes()
        if available is not None and 2 * num_bytes > available:
            raise LoweringError(
                "there is no memory for the process in which a session is tried first",
                expected=f"{2 * num_bytes / 1e6:.0f} MB",
                got=f"{available / 1e6:.0f} MB",
                is_bug=False,
            )
        memory = _memory(None if available is None else available - num_bytes)
        task = Task("run", header, arrays, LEAST_S + num_bytes / BYTES_PER_S, memory)
        self._tried(task, "built and ran this graph", {**header, "shapes": shapes}, request.proto)
        self._sizes.add(tuple(each.shape for each in feeds.values()))
        self._num_left -= 1


def _memory(available: int | None) -> int:
    """Bytes that a process may take of those that are there."""
    return 1 << 62 if available is None else int(_SHARE * max(0, available))


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The memory of a tensor; numpy has no bfloat16, whose bits are shown as integers."""
    try:
        array: NDArray[Any] = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    except TypeError as error:
        raise LoweringError(
            "a runtime cannot be tried with numbers that numpy does not know", got=error
        ) from error
    return array
