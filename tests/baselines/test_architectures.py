"""The collection of architectures: equality of outputs, and grouping of the reasons for unchanged graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="most of the collection comes from the transformers package")
pytest.importorskip("torch_geometric", reason="graph neural networks need torch_geometric")

from baselines.collection.leaves import assert_same
from baselines.collection.table import ARCHITECTURES, CASES, arguments, build


@pytest.mark.parametrize(
    ("actual", "where"),
    [
        ((torch.ones(2) * 1.001, 5), "output.0"),
        ((torch.ones(2).double(), 5), "output.0"),
        ((torch.ones(1, 2), 5), "output.0"),
        ((torch.ones(2), 6), "output.1"),
        ((torch.ones(2), torch.tensor(5)), "output.1"),
        ((torch.ones(2),), "outputs"),
    ],
)
def test_what_differs_is_told(actual: Any, where: str) -> None:
    expected = (torch.ones(2), 5)
    assert_same(expected, (torch.ones(2) * (1 + 1e-6), 5))
    with pytest.raises(AssertionError, match=f"^{where}: "):
        assert_same(expected, actual)


def test_the_collection_covers_what_it_promises() -> None:
    families = {each.family for each in ARCHITECTURES.values()}
    assert {"encoder", "decoder", "encoder-decoder", "vision", "audio", "multimodal", "graph"} <= families
    assert {case.cache for case in CASES.values()} == {"", "dynamic", "static"}
    assert len(ARCHITECTURES) >= 100


def test_a_case_is_the_same_whenever_it_is_built() -> None:
    case = CASES["shufflenet"]
    first, second = build(case).state_dict(), build(case).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(arguments(case, 2, 1)["x"], arguments(case, 2, 1)["x"])
    assert not torch.equal(arguments(case, 2, 1)["x"], arguments(case, 2, 2)["x"])
