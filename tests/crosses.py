"""Crosses of models, executors and so on: some of each in `make test`, the others in `make nightly`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def nightly_but(kept: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """The values as parameters; those that are not kept for `make test` are marked.

    Args:
        kept: values, each of which is among all.
        values: all; tuples for several arguments.
    """
    found = list(values)
    assert all(value in found for value in kept), f"not all of {kept} are among {found}"
    return [
        value if value in kept else nightly(*value) if isinstance(value, tuple) else nightly(value)
        for value in found
    ]


def nightly(*values: Any) -> Any:
    """A parameter for `make nightly` alone."""
    return pytest.param(*values, marks=pytest.mark.nightly)
