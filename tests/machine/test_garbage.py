"""Suspending the garbage collector: torchrlopt/machine/profiling/garbage.py."""

from __future__ import annotations

import contextlib
import gc

import pytest

from torchrlopt.machine.profiling.garbage import no_garbage_collection


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_off_inside_and_as_it_was_behind(was_enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if was_enabled else gc.disable)()
    try:
        with contextlib.suppress(KeyError), no_garbage_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == was_enabled
    finally:
        (gc.enable if before else gc.disable)()
