"""Arrays and their metadata in memory shared by two processes.

Both sides load this file; the child loads it by path, without the package around it.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

_LENGTH_BYTES = 8
_ALIGNMENT = 64  # a cache line: runtimes read weights in place, with aligned vector loads


def pack(header: Mapping[str, Any], arrays: Arrays) -> int:
    """Write a packet; the memory is freed when its last descriptor is closed.

    Args:
        header: JSON-serialisable.
        arrays: contiguous.

    Returns:
        A descriptor of the memory, owned by the caller.

    Raises:
        OSError: there is not enough memory.
    """
    places: list[tuple[str, str, tuple[int, ...], int]] = []
    at = 0
    for name, array in arrays.items():
        places.append((name, array.dtype.str, array.shape, at))
        at += _aligned(array.nbytes)
    text = json.dumps({"header": dict(header), "arrays": places}).encode()
    begin = _aligned(_LENGTH_BYTES + len(text))
    descriptor = os.memfd_create("torchrlopt", os.MFD_CLOEXEC)
    try:
        # Write instead of mapping: running out of memory then raises an error instead of SIGBUS.
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
            for (*_, place), array in zip(places, arrays.values(), strict=True):
                file.seek(begin + place)
                file.write(array.reshape(-1).view(np.uint8).data)
        os.ftruncate(descriptor, begin + at)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unpack(descriptor: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a packet. The arrays are writable; the other process does not see the writes.

    Args:
        descriptor: is closed.
    """
    memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE)
    os.close(descriptor)
    length = int.from_bytes(memory[:_LENGTH_BYTES], "little")
    found = json.loads(memory[_LENGTH_BYTES : _LENGTH_BYTES + length])
    begin = _aligned(_LENGTH_BYTES + length)
    arrays = {
        name: np.ndarray(shape, dtype, memory, begin + place) if 0 not in shape else np.empty(shape, dtype)
        for name, dtype, shape, place in found["arrays"]
    }
    return found["header"], arrays


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
