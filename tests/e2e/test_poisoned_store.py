"""A plan store with an entry that nobody here would have written: the entry counts as missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from torchrlopt.plan.store import PlanStore


def _poisoned(value: Any) -> Any:
    """The same with a lone surrogate, which no UTF-8 has, in the name of every step."""
    if isinstance(value, dict):
        named = {name: _poisoned(each) for name, each in value.items()}
        return named | {"steps": [["\ud800", at] for _, at in value["steps"]]} if "steps" in value else named
    return [_poisoned(each) for each in value] if isinstance(value, list) else value


def test_a_step_whose_name_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.ReLU()).eval()
    x = torch.randn(2, 8)
    options = {"on_error": "raise", "measure": False, "searcher": "greedy"}
    expected = torchrlopt.optimise(model, x, **options).report.steps
    real, poisoned = PlanStore.get, []

    def get(store: PlanStore, key: str) -> Any:
        entry = real(store, key)
        changed = _poisoned(entry)
        if changed != entry:
            poisoned.append(key)
        return changed

    monkeypatch.setattr(PlanStore, "get", get)
    torch._dynamo.reset()
    report = torchrlopt.optimise(model, x, **options).report
    assert poisoned
    assert report.kept == "rewritten"
    assert report.steps == expected
