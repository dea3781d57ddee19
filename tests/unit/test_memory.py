"""What a process has compiled: torchrlopt/compile/memory.py."""

from __future__ import annotations

from typing import Any

import pytest

from torchrlopt.compile import memory
from torchrlopt.compile.memory import Memory
from torchrlopt.errors import UnsupportedError
from torchrlopt.report import Report


def test_what_is_kept_is_found() -> None:
    known = Memory()
    assert known.find("a") is None
    compiled = known.keep("a", lambda *args: args, Report(kept="rewritten"))
    assert known.find("a") == (compiled, Report(kept="rewritten"))
    assert known.keep("b", None, Report()) is None
    assert known.find("b") == (None, Report())
    known.clear()
    assert known.find("a") is None
    assert known.find("b") is None


def test_a_compiled_graph_lives_as_long_as_somebody_uses_it() -> None:
    known = Memory()
    compiled: Any = known.keep("a", lambda *args: args, Report())
    assert compiled([1, 2]) == (1, 2)
    del compiled
    assert known.find("a") is None


def test_graphs_that_stay_as_they_are_do_not_pile_up() -> None:
    known = Memory()
    for number in range(memory.MAX_KEPT_ORIGINAL + 5):
        known.keep(str(number), None, Report())
    assert len(known.kept_original) == memory.MAX_KEPT_ORIGINAL
    assert known.find("0") is None
    assert known.find(str(memory.MAX_KEPT_ORIGINAL + 4)) is not None


def test_one_warning_for_each_cause(caplog: pytest.LogCaptureFixture) -> None:
    known = Memory()
    for error in (UnsupportedError("one"), UnsupportedError("one"), MemoryError("one")):
        known.warn_once(error)
    assert len(caplog.records) == 2
