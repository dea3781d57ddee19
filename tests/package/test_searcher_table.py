"""The table of searchers: a module and a row are everything that the package needs to know of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchrlopt
from torchrlopt import searcher_table
from torchrlopt.errors import OptionsError
from torchrlopt.options import SearchOptions
from torchrlopt.searcher_table import ROWS, SearcherRow

# A searcher in a module of its own: greedy that takes the first step only.
MODULE = """
import dataclasses

from torchrlopt.plan.search import ClassicSearcher


class FirstStep:
    def search(self, graph, library, cost, options):
        plan = ClassicSearcher().search(graph, library, cost, options.with_searcher("greedy"))
        return dataclasses.replace(
            plan, steps=plan.steps[:1], costs_ms=plan.costs_ms[:1], searcher="first_step"
        )


def make_searcher(options, library):
    return FirstStep()


def digest(options):
    return "1"
"""


@pytest.fixture
def first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first_step_searcher.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    row = SearcherRow("first_step", "first_step_searcher", "takes one step")
    monkeypatch.setattr(searcher_table, "ROWS", (*ROWS, row))


@pytest.mark.usefixtures("first_step")
def test_a_row_is_all_that_a_searcher_needs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()).eval()
    x = torch.randn(4, 8)
    torch._dynamo.reset()
    ours = torchrlopt.optimise(model, x, searcher="first_step", on_error="raise", min_gain=-10)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x))
    assert (ours.report.searcher, len(ours.report.steps)) == ("first_step", 1)


def test_the_searcher_is_unknown_without_its_row() -> None:
    with pytest.raises(OptionsError, match="option searcher has no such value"):
        SearchOptions(searcher="first_step")
    with pytest.raises(OptionsError, match="did you mean 'greedy'"):
        SearchOptions(searcher="gredy")
