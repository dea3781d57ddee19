"""The collection of architectures: equality of outputs, and grouping of the reasons for unchanged graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="most of the collection comes from the transformers package")
pytest.importorskip("torch_geometric", reason="graph neural networks need torch_geometric")

from baselines.architectures import summary
from baselines.collection.leaves import assert_same, leaves
from baselines.collection.run import Outcome, cause
from baselines.collection.table import ARCHITECTURES, CASES, arguments, build, larger
from torchrlopt.report import Report, Status


class Cache:
    """An object that no registry knows, with itself among its parts."""

    def __init__(self, key: torch.Tensor) -> None:
        self.layers = [{"key": key}]
        self.owner = self


def test_leaves_are_found_in_containers_and_objects() -> None:
    key = torch.ones(2)
    assert dict(leaves({"a": (1, None), "cache": Cache(key)})) == {
        "output.a.0": 1,
        "output.a.1": None,
        "output.cache.layers.0.key": key,
    }


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


def test_a_larger_call_has_longer_texts_and_larger_images() -> None:
    given = {
        "ids": torch.arange(4)[None],
        "image": torch.ones(1, 3, 4, 6),
        "size": 5,
        "vector": torch.ones(3),
    }
    made = larger(given)
    assert made["ids"].tolist() == [[0, 1, 2, 3, 0, 1]]
    assert made["image"].shape == (1, 3, 6, 9)
    assert made["size"] == 5
    assert made["vector"] is given["vector"]


def test_reasons_are_grouped_without_their_numbers() -> None:
    slow = [f"the rewritten graph is not faster: gain -0.0{i}, min_gain 0.02" for i in range(2)]
    assert {cause(Report(Status(fallback_reason=text))) for text in slow} == {
        "the rewritten graph is not faster"
    }
    assert cause(Report()) == "nothing to rewrite"


def test_the_summary_counts() -> None:
    lines = summary(
        [
            Outcome("bert", "encoder", "equal", 3, 1, speedup=2.0, reasons="2 x not faster"),
            Outcome("gpt2/static", "decoder", "wrong", 1, 0, speedup=0.5, reasons="1 x not faster"),
        ]
    )
    assert lines[0].startswith("2 cases of 2 of")
    assert "1 of 4 graphs run rewritten" in lines
    assert "measured speed-up of a case: geometric mean 1.00x, at most 2.00x" in lines
    assert "  3 kept: not faster" in lines
    assert "0 cases in which the fallback has hidden an internal error" in lines
    hiding = Outcome("bert", "encoder", "equal", 1, 0, hidden="LoweringError: a dimension must be static")
    assert "1 cases in which the fallback has hidden an internal error" in summary([hiding])


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
