"""Files with the arrays of several calls, inputs or outputs, for other processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

Call = Sequence[np.ndarray]


def save_calls(path: Path, calls: Sequence[Call]) -> None:
    """Write the arrays of each call to an .npz file."""
    np.savez(path, **{f"{at}_{n}": array for at, call in enumerate(calls) for n, array in enumerate(call)})


def load_calls(path: Path) -> list[list[np.ndarray]]:
    """Read what `save_calls` has written."""
    calls: dict[str, list[np.ndarray]] = {}
    with np.load(path) as arrays:
        for name, array in arrays.items():
            calls.setdefault(name.partition("_")[0], []).append(array)
    return list(calls.values())
