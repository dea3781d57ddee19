"""Outputs of any model as a flat list of leaves, and the comparison of two outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

#: Relative to an element, and to the largest magnitude of its tensor: rounding in another order stays far
#: below this, a missing epsilon or bias far above.
_TOLERANCE = 1e-4


def leaves(value: Any, path: str = "output", seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Tensors and plain values with their paths, through containers and object attributes.

    Key-value caches are such objects; no registry knows all kinds of them.
    """
    if isinstance(value, Tensor | int | float | complex | str | bytes | torch.dtype | torch.device | None):
        yield path, value
    elif id(value) not in seen:
        below = seen | {id(value)}
        for name, part in _parts(value):
            yield from leaves(part, f"{path}.{name}", below)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(index), part) for index, part in enumerate(value))
    elif not callable(value):
        yield from getattr(value, "__dict__", {}).items()


def assert_same(expected: Any, actual: Any) -> None:
    """Check that all leaves have the same type, dtype, shape and device, and close values.

    Raises:
        AssertionError: they differ; the message says where, and by how much.
    """
    wanted, found = dict(leaves(expected)), dict(leaves(actual))
    if list(wanted) != list(found):
        raise AssertionError(f"outputs: expected {list(wanted)}, got {list(found)}")
    for path, value in wanted.items():
        if not isinstance(value, Tensor):
            if type(value) is not type(found[path]) or value != found[path]:
                raise AssertionError(f"{path}: expected {value!r}, got {found[path]!r}")
            continue
        inexact = value.is_floating_point() or value.is_complex()
        sizes = value.detach().abs().nan_to_num(0.0, 0.0, 0.0) if inexact else value
        scale = float(sizes.max()) if inexact and value.numel() > 0 else 0.0
        torch.testing.assert_close(
            found[path],
            value,
            rtol=_TOLERANCE if inexact else 0.0,
            atol=_TOLERANCE * scale,
            equal_nan=True,
            msg=lambda text, where=path: f"{where}: {text}",
        )
