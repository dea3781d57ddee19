"""Tells malloc to keep the memory of large intermediates between the calls of a graph.

By default glibc asks the operating system for new pages at every allocation of more than 32 MB, and returns
free pages at the end of the heap beyond twice the largest block that was freed. The operating system clears
every new page when it is first touched: a ResNet-50 at batch 16 has 63,000 such page faults in each call,
and spends an eighth of its time on them. As long as a graph lives, this module makes malloc keep the heap
large, and take large blocks from it during calls. It changes nothing where malloc is not glibc's, or where
the user has set malloc up by environment variables.

These settings are the process's, so they are made such that other threads do not feel them. The heap proper
is the main thread's; every other thread has heaps of its own of at most 64 MB each. Those hardly hold the
largest blocks in question, so calls in other threads change no setting; and to keep up to 64 MB of one of
them is what malloc arrives at by itself where tensors of 32 MB come and go.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import platform
import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch import fx

from torchrlopt.capture.footprint import peak_of_calls
from torchrlopt.executors.lowering.fx_values import tensor_of

WORTH_KEEPING = 8 << 20
"""A graph whose intermediates take fewer bytes is left alone.

By itself glibc keeps twice the largest block that was freed, which may be too little where a graph has
several at a time. How much it is depends on what the process freed before: moe_loop at batch 16, with 17 MB
at a time in blocks of 8 MB, had 3,000 to 16,000 page faults in each call, and a network of the same sizes
that was made for a test had none.
"""

# Numbers of mallopt's parameters, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
# glibc adapts its thresholds to what a process frees, and stops as soon as one of them is set. These are the
# values that it reaches in a process that frees large tensors, so they are set with the rest.
_LARGEST_ON_HEAP, _KEPT_AT_LEAST, _NUM_MAPS = 32 << 20, 64 << 20, 1 << 16
_USERS_OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")

_held: dict[int, int] = {}  # for each living graph, the bytes that its intermediates take
_serial = itertools.count()


@functools.cache
def _libc() -> ctypes.CDLL | None:
    """The C library; None where its malloc is not glibc's, or where the user has set it up."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return None
    if any(name in os.environ for name in _USERS_OWN) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return None
    return ctypes.CDLL(None)


def give_back() -> None:
    """Return free pages to the operating system, such as those that the check has freed."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def on_heap(run: Callable[..., Any], num_bytes: int) -> Callable[..., Any]:
    """Wrap a function so that malloc serves it from the heap, and keeps the heap while the wrapper lives.

    Args:
        run: runs a graph.
        num_bytes: most bytes that its intermediates take at a time; `peak_bytes` computes them.

    Returns:
        The wrapper; `run` itself if `num_bytes` is below `WORTH_KEEPING` or malloc must be left as it is.
    """
    libc = _libc()
    return run if libc is None or num_bytes < WORTH_KEEPING else _OnHeap(run, num_bytes, libc)


class _OnHeap:
    """The wrapper that `on_heap` returns: in a call of the main thread malloc maps no block for itself."""

    def __init__(self, run: Callable[..., Any], num_bytes: int, libc: ctypes.CDLL) -> None:
        self._run = run
        self._mallopt = libc.mallopt
        key = next(_serial)
        _held[key] = num_bytes
        _settle(libc)
        weakref.finalize(self, _release, key, libc).atexit = False

    def __call__(self, *args: Any) -> Any:
        if threading.get_native_id() != os.getpid():
            return self._run(*args)
        self._mallopt(_MMAP_MAX, 0)
        try:
            return self._run(*args)
        finally:
            self._mallopt(_MMAP_MAX, _NUM_MAPS)


def _settle(libc: ctypes.CDLL) -> None:
    """Tell malloc how much free heap to keep: enough for the largest living graph.

    Graphs mostly run one after the other, so the largest need covers them all.
    """
    # Free blocks lie scattered between used ones, so one graph may fill up to four times what it needs.
    largest = max([*_held.values()], default=0)  # of a copy: graphs come and go in other threads
    kept = max(_KEPT_AT_LEAST, 4 * largest)
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    libc.mallopt(_TRIM_THRESHOLD, min(kept, 2**31 - 1))


def _release(key: int, libc: ctypes.CDLL) -> None:
    """Forget a graph that is gone; after the last one, give the free heap back."""
    del _held[key]
    _settle(libc)
    if not _held:
        libc.malloc_trim(0)


def peak_bytes(graph: fx.Graph) -> int:
    """Most bytes of CPU memory that the results of calls take at a time.

    Args:
        graph: an ATen graph with `meta["val"]`. A view counts as if it had memory of its own; a symbolic size
            counts as its hint.
    """
    return peak_of_calls(graph, _num_bytes)


def _num_bytes(node: fx.Node) -> int:
    """Bytes of the result of a call; 0 for what is no tensor, or not in CPU memory."""
    value = tensor_of(node)
    if value is None or value.device.type != "cpu":
        return 0
    num_bytes = value.dtype.itemsize
    for size in value.shape:
        num_bytes *= size if isinstance(size, int) else int(size.node.hint) if size.node.has_hint() else 1
    return num_bytes
