"""Runs tasks of a runtime that may crash, hang or exhaust memory, each in a fresh process."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrlopt.errors import LoweringError
from torchrlopt.executors.isolation import verdicts
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


def tried(module: Path, title: str, task: Task, doing: str, key: str, is_stored: bool) -> dict[str, Any]:
    """The answer to a task, from a process or from the cache.

    Args:
        module: see `run_task`.
        title: display name of the runtime.
        task: the task.
        doing: description of the task for messages: "while it ...".
        key: see `verdicts.key_of`.
        is_stored: whether to look up and store answers on disk.

    Raises:
        LoweringError: the process crashed, hung or was killed for its memory use, now or earlier; or the
            runtime rejected the task.
        UnsupportedError: see `run_task`.
    """
    found = verdicts.known(key, is_stored)
    if found is None:
        try:
            found = {"answer": run_task(module, task)}
        except Death as death:
            found = {"death": death.how, "detail": death.detail}
            verdicts.remember(key, found, is_stored and death.is_lasting)
            raise _error(title, doing, found) from death
        except OSError as error:
            raise LoweringError(
                f"there is no memory to try {title} in a process of its own", got=error, is_bug=False
            ) from error
        # Errors are not stored: one from a lack of memory may not recur.
        verdicts.remember(key, found, is_stored and "error" not in found["answer"])
    elif "death" in found:
        raise _error(title, doing, found, is_old=True)
    answer: dict[str, Any] = found["answer"]
    if "error" in answer:
        raise LoweringError(f"{title} refuses the model", got=answer["error"], is_bug=False)
    return answer


def _error(title: str, doing: str, found: dict[str, Any], is_old: bool = False) -> LoweringError:
    day = datetime.date.fromtimestamp(found["at"]).isoformat() if is_old else ""
    when = f", on {day}; remembered" if is_old else ""
    return LoweringError(
        f"{title} was tried in a process of its own first, and {found['death']} while it {doing}{when}",
        got=found.get("detail") or None,
        is_bug=False,
    )
