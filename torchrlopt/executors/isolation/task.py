"""Runs tasks of a runtime that may crash, hang or exhaust memory, each in a fresh process."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrlopt.executors.isolation.packet import Arrays, pack
from torchrlopt.limited import Death, Limits, call_limited

_CHILD = Path(__file__).with_name("task_child.py")


@dataclasses.dataclass(frozen=True)
class Task:
    """A call of a function in a separate process.

    Attributes:
        what: name of the function.
        header: JSON-serialisable.
        arrays: contiguous; passed in shared memory.
        seconds: wall-clock time limit.
        memory_bytes: how much the function may allocate.
    """

    what: str
    header: Mapping[str, Any]
    arrays: Arrays
    seconds: float
    memory_bytes: int


def run_task(module: Path, task: Task) -> dict[str, Any]:
    """Run a task and return its answer.

    The process imports the runtime and little else, never the user's script or torch.

    Args:
        module: the file with the function. It is run without the package around it: it may import numpy, and
            its functions the runtime.
        task: the task.

    Raises:
        Death: the process ended without an answer.
        UnsupportedError: no process could be started.
        OSError: there is not enough memory for the arrays.
    """
    data = pack(task.header, task.arrays)
    arguments = (str(module), task.what, str(task.memory_bytes))
    limits = Limits(task.seconds, task.memory_bytes, answer_bytes=1 << 14, is_confined=False)
    try:
        answer = json.loads(call_limited(str(_CHILD), arguments, data, limits, "the first run of a runtime"))
    finally:
        os.close(data)
    if not isinstance(answer, dict):
        raise Death("its process ended without an answer")
    return answer
