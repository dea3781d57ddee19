"""The first calls of a process check a stored verdict: torchrlopt/compile/early_calls.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchrlopt.compile.early_calls import checked_by_calls
from torchrlopt.judge import timing
from torchrlopt.judge.faster import Verdict
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.timing import Sample

CALLS = 12
X = torch.zeros(2)


class Calls:
    """Calls of two graphs, of which one is quicker by the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, quick: str) -> None:
        self.made: list[str] = []
        self.verdicts: list[Verdict] = []
        self._quick = quick
        monkeypatch.setattr(timing, "sample_of", self._sample_of)
        graphs = [self._graph(name) for name in ("original", "rewritten")]
        self.run = checked_by_calls(*graphs, Policy(), self._end)

    def _graph(self, name: str) -> Callable[..., torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            self.made.append(name)
            return x + 1

        return run

    def _sample_of(self, call: Callable[..., Any], *_: Any) -> Sample:
        call()
        return Sample(1.0 if self.made[-1] == self._quick else 2.0)

    def _end(self, found: Verdict) -> bool:
        self.verdicts.append(found)
        return not found.is_faster


@pytest.mark.parametrize("quick", ["original", "rewritten"])
def test_calls_alternate_until_the_verdict_is_clear(quick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, quick)
    with torch.no_grad():
        for _ in range(CALLS):
            assert torch.equal(calls.run(X), X + 1)
    alternated = ["original", "rewritten", "rewritten", "original"]
    # The call that compiles is no sample.
    assert calls.made == ["rewritten", *alternated, *[quick] * (CALLS - 5)]
    assert [each.is_faster for each in calls.verdicts] == [quick == "rewritten"]


def test_calls_of_other_kinds_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, "original")
    with torch.no_grad():
        calls.run(X)
        for _ in range(5):
            calls.run(torch.zeros(3))
    calls.run(X)
    assert calls.made == ["rewritten"] * 7
    assert calls.verdicts == []
