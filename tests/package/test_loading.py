"""Imports that delay a first call are reported once: torchrlopt/loading.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchrlopt.loading import load, take_ms


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module whose import takes 20 ms."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.02)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_to_import", raising=False)
    return "slow_to_import"


def test_what_was_imported_is_told_once(slow_module: str) -> None:
    take_ms()
    load("imports", [slow_module])
    load("imports", [slow_module])  # it is there: not worth a word
    told = take_ms()
    assert list(told) == ["imports"]
    assert told["imports"] >= 20
    assert take_ms() == {}
