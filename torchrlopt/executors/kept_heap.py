"""Memory of large intermediates, kept between calls instead of given back to the kernel.

glibc maps more than 32 MB anew at every allocation, and gives free memory at the end of the heap back. The
kernel then clears it page by page when it is used next: for a ResNet-50 at batch 16 that is 63,000 page
faults a call and an eighth of its time. Other runtimes have arenas; here the heap serves as one for as long
as a graph lives. A process whose malloc was set up by its user, or is not glibc's, is left as it is.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import platform
import weakref
from collections.abc import Callable
from typing import Any

from torch import fx

from torchrlopt.executors.lowering.fx_values import tensor_of

WORTH_KEEPING = 32 << 20
"""Bytes of intermediates from which on a graph's memory is kept."""

# Of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
# What glibc comes to by itself in a process that frees large tensors; setting anything ends that.
_LARGEST_ON_HEAP, _KEPT_AT_LEAST, _NUM_MAPS = 32 << 20, 64 << 20, 1 << 16
_USERS_OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")

_held: dict[int, int] = {}  # bytes that each living graph needs
_serial = itertools.count()


@functools.cache
def _libc() -> ctypes.CDLL | None:
    """The C library whose malloc may be told what to keep, None where there is none."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return None
    if any(name in os.environ for name in _USERS_OWN) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return None
    return ctypes.CDLL(None)


def on_heap(run: Callable[..., Any], num_bytes: int) -> Callable[..., Any]:
    """The function, with all that it allocates on the heap, and so much of the heap kept while it lives.

    Args:
        run: of a graph.
        num_bytes: that its intermediates take at a time, see `peak_bytes`.

    Returns:
        `run` itself where that is too little to matter or malloc is not ours to set.
    """
    libc = _libc()
    return run if libc is None or num_bytes < WORTH_KEEPING else _OnHeap(run, num_bytes, libc)


class _OnHeap:
    """See `on_heap`."""

    def __init__(self, run: Callable[..., Any], num_bytes: int, libc: ctypes.CDLL) -> None:
        self._run = run
        self._mallopt = libc.mallopt
        key = next(_serial)
        _held[key] = num_bytes
        _settle(libc)
        weakref.finalize(self, _release, key, libc).atexit = False

    def __call__(self, *args: Any) -> Any:
        self._mallopt(_MMAP_MAX, 0)
        try:
            return self._run(*args)
        finally:
            self._mallopt(_MMAP_MAX, _NUM_MAPS)


def _settle(libc: ctypes.CDLL) -> None:
    """Keep what the largest of the living graphs needs: as a rule they run one after the other."""
    # Four times its need at most: what is free does not always lie where it is wanted.
    kept = max(_KEPT_AT_LEAST, 4 * max(_held.values(), default=0))
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    libc.mallopt(_TRIM_THRESHOLD, min(kept, 2**31 - 1))


def _release(key: int, libc: ctypes.CDLL) -> None:
    """A graph is gone."""
    del _held[key]
    _settle(libc)
    if not _held:
        libc.malloc_trim(0)


def peak_bytes(graph: fx.Graph) -> int:
    """Most memory that results of calls take at a time.

    Args:
        graph: with `meta["val"]`; views count as copies, symbolic sizes as their hints.
    """
    last_reader = {source: node for node in graph.nodes for source in node.all_input_nodes}
    alive = peak = 0
    for node in graph.nodes:
        alive += _num_bytes(node)
        peak = max(peak, alive)
        alive -= sum(_num_bytes(source) for source in node.all_input_nodes if last_reader[source] is node)
    return peak


def _num_bytes(node: fx.Node) -> int:
    value = tensor_of(node)
    if value is None or node.op != "call_function" or value.device.type != "cpu":
        return 0
    num_bytes = value.dtype.itemsize
    for size in value.shape:
        num_bytes *= size if isinstance(size, int) else int(size.node.hint) if size.node.has_hint() else 1
    return num_bytes
