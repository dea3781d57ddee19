"""Stand-in for a runtime in the tests of `torchrlopt/executors/isolation`, loaded from its file path.

Each function is a task.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from typing import Any

import numpy as np

print("noise of an import")


def echo(header: Any, arrays: Any) -> Any:
    print("noise")
    told = {}
    for name, x in arrays.items():
        told[name] = [str(x.dtype), list(x.shape), x.astype("f8").sum(), x.ctypes.data % 64]
    for x in arrays.values():
        x[...] = 0  # it is this process's own
    return {"header": header, "arrays": told}


def pids(header: Any, arrays: Any) -> Any:
    return {"worker": os.getpid()}


def modules(header: Any, arrays: Any) -> Any:
    return {"names": sorted(sys.modules), "main": sys.modules["__main__"].__file__, "path": sys.path}


def folder(header: Any, arrays: Any) -> Any:
    return {"folder": os.getcwd()}


def handles(header: Any, arrays: Any) -> Any:
    return {
        "open": {
            at: os.readlink("/proc/self/fd/" + at)
            for at in os.listdir("/proc/self/fd")
            if os.path.exists("/proc/self/fd/" + at)
        }
    }


def crash(header: Any, arrays: Any) -> Any:
    ctypes.string_at(0)


def abort(header: Any, arrays: Any) -> Any:
    os.write(2, b"first line\nterminate called after throwing an instance of 'what'\n")
    os.abort()


def hang(header: Any, arrays: Any) -> Any:
    if "note" in header:
        with open(header["note"], "w") as file:
            file.write(str(os.getpid()))
    time.sleep(1000)


def fill(header: Any, arrays: Any) -> Any:
    return {"sum": int(np.ones(header["bytes"], np.uint8)[::4096].sum())}


def fill_in_c(header: Any, arrays: Any) -> Any:
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    while malloc(1 << 28):
        pass
    os.abort()


def leave(header: Any, arrays: Any) -> Any:
    os._exit(0)


def write_everywhere() -> None:
    for at in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(at, b'{"answ')


def half(header: Any, arrays: Any) -> Any:
    write_everywhere()
    os.abort()


def refuse(header: Any, arrays: Any) -> Any:
    raise RuntimeError("no such operator")


def killed(header: Any, arrays: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
