"""Fixtures for tests of whole models."""

from __future__ import annotations

import pytest

from torchrlopt.compile.memory import Compiled


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each call of a rewritten graph."""
    seen: list[int] = []
    plain = Compiled.run
    monkeypatch.setattr(Compiled, "run", lambda self, args: seen.append(1) or plain(self, args))
    return seen
