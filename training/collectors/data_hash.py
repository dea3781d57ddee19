"""One hash of all collected data; it does not depend on the number of workers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor


def data_hash(value: Any) -> str:
    """SHA-256 of nested results: tensors and arrays with dtype and shape, dataclasses, lists, numbers."""
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(len(part).to_bytes(8, "little"))  # else ("ab", "c") would equal ("a", "bc")
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif dataclasses.is_dataclass(value):
        yield type(value).__name__.encode()
        for field in dataclasses.fields(value):
            yield field.name.encode()
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, dict):
        for name in sorted(value):
            yield repr(name).encode()
            yield from _parts(value[name])
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for each in value:
            yield from _parts(each)
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        yield repr(value).encode()
    else:
        raise TypeError(f"{type(value).__name__} has no hash by content")
