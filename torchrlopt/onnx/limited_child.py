"""The other side of `limited.py`: sets its own limits, then calls a module. Not imported by anything."""

from __future__ import annotations

import importlib
import importlib.util
import os
import resource
import sys
import time
from pathlib import Path
from types import ModuleType


def main() -> None:
    """`limited_child.py MODULE MEMORY CPU [ARGUMENT...]`, data on the standard input."""
    name, memory, cpu, *arguments = sys.argv[1:]
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no part of the answer
    module = _module(name)
    data = sys.stdin.buffer.read()
    _limit(int(memory), int(cpu))
    answer.write(module.main(data, arguments))
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
        resource.setrlimit(kind, (allowed, hardest))


if __name__ == "__main__":
    main()
