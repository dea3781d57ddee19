"""Returns memory that is free within this process to the system."""

from __future__ import annotations

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Of glibc; other allocators return memory by themselves."""


def return_free_memory() -> None:
    """Return what glibc keeps of freed blocks for later ones.

    The float64 run of the check frees blocks of some MB each. From then on glibc takes blocks of that size,
    such as packed weights, from its heap, which it returns only from the end: of bert_base, 540 MB stayed
    with the process after its rewritten graph had been dropped.
    """
    if _trim is not None:
        _trim(0)
