"""The subprocess of `limited`: sets its own limits, drops rights, then calls a module.

In the mode "trusted" it keeps its rights, and the module limits its memory itself. It imports nothing from
the package by name because that would load torch.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parents[1]
CONFINED, TRUSTED = "confined", "trusted"
DONE = b"done"  # marks a complete answer: if SIGCHLD is ignored there is no exit status
NOTE = "sandbox: "  # prefix of lines that the parent logs
_GRACE_S = 5.0  # lets the parent, which reports more, end this process first


def main() -> None:
    """`child.py PARENT MODULE MODE MEMORY SECONDS CPU [ARGUMENT...]`, data on the standard input."""
    parent, name, mode, memory, seconds, cpu, *arguments = sys.argv[1:]
    processes = _module(str(_PACKAGE / "processes.py"))
    sandbox = _module(str(_PACKAGE / "sandbox.py"))
    processes.killed_with_parent(int(parent))
    processes.killed_after(float(seconds) + _GRACE_S)
    is_confined = mode != TRUSTED
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # output printed by libraries must not end up in the answer
    with contextlib.suppress(FileNotFoundError):
        tempfile.gettempdir()  # torch calls this; finding a directory requires writing to it
    if is_confined:
        # Nothing can be executed below, and nothing must be looked for: with a CUDA build, torch imports
        # cuda.pathfinder, whose search for a library by gcc would end the import with PermissionError.
        os.environ["PATH"] = os.devnull  # an empty one would stand for the working directory
    # Drop rights before other threads start, which would keep theirs. Imports only need to read.
    are_files_confined = not is_confined or sandbox.confine_files()
    module = _module(name)
    data = sys.stdin.buffer.read() if is_confined else sys.stdin.fileno()
    _limit(int(memory) if is_confined else None, int(cpu))
    are_calls_confined = not is_confined or sandbox.confine_calls()
    if not (are_files_confined and are_calls_confined):
        missing = [] if are_files_confined else [sandbox.LANDLOCK]
        missing += [] if are_calls_confined else [sandbox.SECCOMP]
        print(f"{NOTE}the kernel has no {' and no '.join(missing)}", file=sys.stderr, flush=True)
    answer.write(module.main(data, arguments))
    answer.write(DONE)
    answer.close()
    os._exit(0)  # skip whatever a library's threads do when the interpreter exits


def _module(name: str) -> ModuleType:
    """Import a module by name, or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _limit(memory: int | None, cpu: int) -> None:
    """Limit memory and processor time from here on, and disable core dumps."""
    limits = {resource.RLIMIT_CPU: int(time.process_time()) + cpu, resource.RLIMIT_CORE: 0}
    if memory is not None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + memory
    for kind, number in limits.items():
        _, hardest = resource.getrlimit(kind)
        allowed = number if hardest == resource.RLIM_INFINITY else min(number, hardest)
        resource.setrlimit(kind, (allowed, allowed))  # hard limit as well, so it cannot be raised again


if __name__ == "__main__":
    main()
