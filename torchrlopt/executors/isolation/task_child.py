"""The child side of `task.py`, which `limited/child.py` calls; nothing imports it."""

from __future__ import annotations

import contextlib
import json
import resource
import runpy
from collections.abc import Sequence
from pathlib import Path

_PACKET = Path(__file__).with_name("packet.py")
_MOST_LETTERS = 2000  # characters of an error message


def main(handle: int, arguments: Sequence[str]) -> bytes:
    """Do a task.

    Args:
        handle: of the packet in shared memory.
        arguments: path of the file with the function, its name, and how many bytes it may allocate.

    Returns:
        The answer as JSON.
    """
    path, what, memory = arguments
    with contextlib.suppress(OSError):  # if memory runs out, kill this process and not the program
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        header, arrays = runpy.run_path(str(_PACKET))["unpack"](handle)
        function = runpy.run_path(path)[what]
        _limit(int(memory))
        return json.dumps(function(header, arrays)).encode()
    except MemoryError:
        return json.dumps({"error": "no memory was left"}).encode()
    except Exception as error:  # noqa: BLE001  # every error is an answer
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:_MOST_LETTERS]}).encode()


def _limit(memory: int) -> None:
    """Limit further writable memory to this many bytes; runtimes reserve far more address space."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (has,) = (int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = has + memory if hardest == resource.RLIM_INFINITY else min(has + memory, hardest)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hardest))
