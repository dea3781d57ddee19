"""The other side of `limited.py`: sets its own limits, drops rights, then calls a module.

Imports nothing of the package by name, as that loads torch.
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
DONE = b"done"  # ends an answer that is whole: where SIGCHLD is ignored there is no exit status
_NOTE = "sandbox: "  # begins a line that `limited.py` logs
_GRACE_S = 5.0  # so that the parent, which says more, ends this process first where it can


def main() -> None:
    """`limited_child.py PARENT MODULE MEMORY SECONDS CPU [ARGUMENT...]`, data on the standard input."""
    parent, name, memory, seconds, cpu, *arguments = sys.argv[1:]
    processes = _module(str(_PACKAGE / "processes.py"))
    sandbox = _module(str(_PACKAGE / "sandbox.py"))
    processes.killed_with_parent(int(parent))
    processes.killed_after(float(seconds) + _GRACE_S)
    with contextlib.suppress(FileNotFoundError):
        tempfile.gettempdir()  # torch asks for it; to find one, it is written to
    # Before there are other threads, which would keep their rights. Imports only read.
    are_files_confined = sandbox.confine_files()
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no part of the answer
    module = _module(name)
    data = sys.stdin.buffer.read()
    _limit(int(memory), int(cpu))
    are_calls_confined = sandbox.confine_calls()
    if not (are_files_confined and are_calls_confined):
        missing = [] if are_files_confined else [sandbox.LANDLOCK]
        missing += [] if are_calls_confined else [sandbox.SECCOMP]
        print(f"{_NOTE}the kernel has no {' and no '.join(missing)}", file=sys.stderr, flush=True)
    answer.write(module.main(data, arguments))
    answer.write(DONE)
    answer.close()


def _module(name: str) -> ModuleType:
    """A module by name, or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _limit(memory: int, cpu: int) -> None:
    """Allow so many bytes and seconds from here on, and no dump of what the file made of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limits = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + memory,
        resource.RLIMIT_CPU: int(time.process_time()) + cpu,
        resource.RLIMIT_CORE: 0,
    }
    for kind, number in limits.items():
        _, hardest = resource.getrlimit(kind)
        allowed = number if hardest == resource.RLIM_INFINITY else min(number, hardest)
        resource.setrlimit(kind, (allowed, allowed))  # not to be raised again


if __name__ == "__main__":
    main()
