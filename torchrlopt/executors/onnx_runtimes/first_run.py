"""Builds and runs the first session of a graph in a separate process; see `executors/isolation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchrlopt.errors import LoweringError
from torchrlopt.executors.isolation.task import Task
from torchrlopt.executors.weights.half_precision import available_bytes

LEAST_S = 120.0
"""Time limit for building a graph and running it twice: many times what the suite's largest models take."""

PROBE_S = 60.0
"""Time limit for a probe: importing the runtime on a busy machine, and nodes without weights."""

BYTES_PER_S = 20e6
"""Extends the time limit for larger weights."""

_SHARE = 0.75
"""Fraction of the available memory. The rest is for the program, whose own session follows."""

_NUM_SIZES = 2
"""Number of size sets to try if sizes vary: the check's few rows, and the user's own.

Later ones are not tried: the graph would be rebuilt for each set of sizes, in the middle of the program's
calls.
"""


class Request(NamedTuple):
    """What a session is created from, without its weights.

    Attributes:
        proto: the model.
        settings: JSON-serialisable, including the number of threads.
    """

    proto: bytes
    settings: Mapping[str, Any]


Try = Callable[[Task, str, Mapping[str, Any], bytes], object]
"""Runs a task unless its outcome is known; see `session_call.Runtime.do`."""


class FirstRun:
    """Tries a graph before a session for it is opened in this process, once per set of sizes.

    Args:
        request: creates a session request for weights by name.
        tried: runs the task.
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
        """Whether no further calls are tried."""
        return self._num_left <= 0

    def is_needed(self, feeds: Sequence[torch.Tensor]) -> bool:
        """Whether a call with feeds of these sizes must be tried."""
        return tuple(each.shape for each in feeds) not in self._sizes

    def run(self, held: Mapping[str, torch.Tensor], feeds: Mapping[str, torch.Tensor]) -> None:
        """Try the graph.

        Args:
            held: weights by name, contiguous.
            feeds: by name, likewise.

        Raises:
            LoweringError: it crashed, hung, ran out of memory, or was rejected.
            UnsupportedError: no process could be started.
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
        memory = memory_for(None if available is None else available - num_bytes)
        task = Task("run", header, arrays, LEAST_S + num_bytes / BYTES_PER_S, memory)
        self._tried(task, "built and ran this graph", {**header, "shapes": shapes}, request.proto)
        self._sizes.add(tuple(each.shape for each in feeds.values()))
        self._num_left -= 1


def memory_for(available: int | None) -> int:
    """How many of the available bytes a process may take."""
    return 1 << 62 if available is None else int(_SHARE * max(0, available))


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The memory of a tensor; bfloat16, which numpy lacks, is viewed as integers."""
    try:
        array: NDArray[Any] = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    except TypeError as error:
        raise LoweringError(
            "a runtime cannot be tried with numbers that numpy does not know", got=error
        ) from error
    return array
