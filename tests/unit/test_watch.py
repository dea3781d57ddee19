"""What of a model is watched, and that changes of it are seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchrlopt import _C
from torchrlopt.api import watch
from torchrlopt.api.watch import Watched, watched


def _watched(model: nn.Module) -> Watched:
    found = watched(model, "M")
    assert found is not None, "this Python and this PyTorch can be watched"
    return found


class _Odd(nn.Module):
    """Has what cannot be told to be as it was, and what can."""

    by_class = 1

    def __init__(self) -> None:
        super().__init__()
        self.number, self.by_class, self.sizes, self.names = 1, 2, (1, (2.0, "a")), ["a"]
        self.wide = nn.Parameter(torch.zeros((1,) * 6))
        self.sparse = nn.Parameter(torch.zeros(2, 2).to_sparse())
        self.plain, self.absent = torch.zeros(2), None
        self.child = nn.Linear(2, 2)
        self.again = self.child

    @property
    def computed(self) -> int:
        return 1


def test_what_is_known_by_which_name() -> None:
    found = _watched(_Odd())
    expected = {
        "M", "M.__dict__", "M._parameters", "M.number", "M.sizes", "M.plain", "M.absent", "M.training",
        "M._modules['child']", "M._modules['child']._parameters['weight']", "list(dict.keys(M._modules))[1]",
    }  # fmt: skip
    assert expected <= found.known
    unknown = {
        "M.by_class", "M.names", "M.computed", "M._parameters['wide']", "M._parameters['sparse']",
        "M._modules['again']",
    }  # fmt: skip
    assert found.known.isdisjoint(unknown)
    assert found.tensors.keys() == {
        "M.plain", "M._modules['child']._parameters['weight']", "M._modules['child']._parameters['bias']",
    }  # fmt: skip


def test_classes_that_answer_for_their_attributes_are_not_known() -> None:
    class Answering(nn.Linear):
        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    found = _watched(nn.Sequential(Answering(2, 2), nn.Linear(2, 2)))
    assert "M._modules['0']" not in found.known
    assert "M._modules['1']" in found.known


@pytest.mark.parametrize("depth", [1, 5])
def test_every_part_is_watched(depth: int) -> None:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(depth):
        model = nn.Sequential(nn.ReLU(), model)
    *_, leaf = model.modules()
    for change in (
        lambda: setattr(leaf, "some", 1),
        lambda: setattr(leaf, "bias", None),
        lambda: leaf.register_buffer("more", torch.zeros(1)),
        lambda: leaf.weight.t_(),
        lambda: leaf.weight.requires_grad_(not leaf.weight.requires_grad),
        lambda: setattr(leaf.weight, "data", torch.zeros(2)),
        lambda: setattr(leaf, "__dict__", dict(vars(leaf))),
        lambda: model.train(not model.training),
    ):
        found = _watched(model)
        assert found.watch.is_unchanged()
        with torch.no_grad():
            change()
        assert not found.watch.is_unchanged(), change.__code__.co_names


def test_numbers_in_tensors_are_not_watched() -> None:
    model = nn.Linear(2, 2)
    found = _watched(model)
    with torch.no_grad():
        model.weight.add_(1)
        model.weight.data.add_(1)
    assert found.watch.is_unchanged()


def test_arguments_are_filled_in_order_and_only_while_nothing_has_changed() -> None:
    model = nn.Linear(2, 2)
    found = _watched(model)
    weight, bias = model.weight, model.bias
    template = _C.Template([None, weight, None, bias])
    assert found.watch.fill(template, (1, 2)) == (1, weight, 2, bias)
    assert template.filled((3, 4)) == (3, weight, 4, bias)
    with pytest.raises(IndexError):
        template.filled((3,))
    model.bias = nn.Parameter(torch.zeros(2))
    assert found.watch.fill(template, (1, 2)) is None


def test_where_nothing_can_be_told_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("this Python does not number the states of dicts")

    class Blind:
        def __init__(self, *_: Any) -> None:
            pass

        def is_unchanged(self) -> bool:
            return True

    for wrong in (refuse, Blind):
        monkeypatch.setattr(_C, "ModuleWatch", wrong)
        watch._can_watch.cache_clear()
        assert watched(nn.Linear(2, 2), "M") is None
    watch._can_watch.cache_clear()
