"""Keeping only one copy of the weights: the option `release_weights`."""

from __future__ import annotations

import copy
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch

import torchrlopt
from torchrlopt.errors import OptionsError
from torchrlopt.storage.directory import default_directory

X = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    return torch.nn.Sequential(*layers).eval()


def frozen(given: torch.nn.Module, **options: bool) -> torchrlopt.Optimised:
    return torchrlopt.optimise(given, (X,), weights="frozen", measure=False, on_error="raise", **options)


def test_released_weights_are_whole_and_leave_no_file() -> None:
    given = model()
    kept = copy.deepcopy(given)
    before = {weight.untyped_storage().data_ptr() for weight in given.parameters()}
    fast = frozen(given, release_weights=True)
    files = list(Path(default_directory()).glob("weight*"))
    moved = [weight for weight in given.parameters() if weight.untyped_storage().data_ptr() not in before]
    assert not files
    assert sum(weight.nbytes for weight in moved) == fast.report.released_bytes
    assert fast.report.released_bytes >= 512 * 256 * 4
    for name, weight in fast.state_dict().items():
        assert torch.equal(weight, kept.state_dict()[name]), name
    with torch.no_grad():
        torch.testing.assert_close(fast(X), kept(X))
        assert torch.equal(given(X), kept(X)), "the original runs as before"
        given[0].weight.mul_(2)  # writes go to memory of their own
        assert torch.equal(given[0].weight, 2 * kept[0].weight)


def test_only_frozen_weights_are_released() -> None:
    with pytest.raises(OptionsError, match="cannot be released"):
        torchrlopt.Options(release_weights=True)


@pytest.mark.parametrize("how", ["view", "array", "state_dict", "other model"])
def test_memory_that_others_hold_is_not_moved(how: str) -> None:
    given, other = model(), model()
    weight = given[0].weight
    held: torch.Tensor
    if how == "view":
        held = weight.detach()
    elif how == "array":
        held = torch.from_numpy(weight.detach().numpy())
    elif how == "state_dict":
        held = given.state_dict()["0.weight"]
    else:
        other[0].weight.data = weight.data
        held = other[0].weight
    frozen(given, release_weights=True)
    assert held.data_ptr() == weight.data_ptr()


def test_released_weights_go_to_other_processes() -> None:
    given = model()
    assert frozen(given, release_weights=True).report.released_bytes > 0
    weight = given[0].weight
    assert not weight.is_shared()
    expected = weight.detach().clone()
    found = pickle.loads(ForkingPickler.dumps(weight.detach()))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    given.share_memory()
    assert weight.is_shared()
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=0)
