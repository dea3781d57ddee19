"""Places in a call: which expressions are read, and what is found."""

from __future__ import annotations

import pytest
import torch

from torchrlopt.api.places import is_same, picker, value_of

X = torch.zeros(2, 3)
ARGS, KWARGS = ([X, {"k": (1, X)}], X), {"b": {"x": X}}
PLACES = {
    "L['args'][1]": X,
    "L['args'][0][0]": X,
    "L['args'][0][1]['k'][1]": X,
    "L['kwargs']['b']['x']": X,
    "L['args'][1].size()[0]": 2,
    "L['args'][1].stride()[0]": 3,
    "L['args'][1].storage_offset()": 0,
    "dict.__getitem__(L['kwargs']['b'], 'x')": X,
    "list(dict.values(L['kwargs']['b']))[0]": X,
}


@pytest.mark.parametrize("source", PLACES)
def test_what_is_found(source: str) -> None:
    assert is_same(value_of(source, ARGS, KWARGS), PLACES[source])


def test_all_at_once() -> None:
    found = picker(list(PLACES))(ARGS, KWARGS)
    assert all(map(is_same, found, PLACES.values()))
    assert picker(["L['args'][1]"])(ARGS, KWARGS) == (X,)
    assert picker([])(ARGS, KWARGS) == ()


@pytest.mark.parametrize(
    "source",
    ["L['model'].weight", "G['x']", "L['args'][0].pop()", "L['args'][print(1)]", "L['args'][", "open('f')"],
)
def test_what_is_no_place(source: str) -> None:
    with pytest.raises(LookupError):
        value_of(source, ARGS, KWARGS)


def test_numbers_are_compared_and_tensors_are_the_same() -> None:
    assert not is_same(X.clone(), X)
    assert not is_same(2, 3)
    assert not is_same(True, 1)
