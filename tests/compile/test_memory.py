"""The process's record of compiled graphs: torchrlopt/compile/memory.py."""

from __future__ import annotations

from typing import Any

import torch

from torchrlopt.compile import memory
from torchrlopt.compile.compiled import Compiled
from torchrlopt.compile.memory import Memory
from torchrlopt.report import Report, Status

IDENTITY = torch.fx.symbolic_trace(torch.nn.Identity())


class Same:
    num_evaluations = 0

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return args


def compiled_identity() -> Compiled:
    return Compiled(Same(), IDENTITY, Status("rewritten"))


def test_a_compiled_graph_lives_as_long_as_somebody_uses_it() -> None:
    known = Memory()
    compiled = compiled_identity()
    known.keep("a", compiled, Report(compiled.status))
    assert compiled([1, 2]) == (1, 2)
    del compiled
    assert known.find("a") is None


def test_graphs_that_stay_as_they_are_do_not_pile_up() -> None:
    known = Memory()
    for number in range(memory.MAX_KEPT_ORIGINAL + 5):
        known.keep_original(str(number), Report())
    assert len(known.kept_original) == memory.MAX_KEPT_ORIGINAL
    assert known.find("0") is None
    assert known.find(str(memory.MAX_KEPT_ORIGINAL + 4)) is not None
