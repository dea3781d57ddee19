"""TASO's substitutions in our notation: training/papers/taso_rules.txt."""

from __future__ import annotations

import pytest

from torchrlopt import _C
from torchrlopt.substitutions.proof.records import axioms_hash, state_of
from training.papers.graphs import BUILT_IN, LIBRARIES, RULES, TASO, library


def test_the_library_of_tasos_rules_is_proved() -> None:
    known = _C.Library(RULES.read_text(encoding="utf-8"), False)
    axioms = axioms_hash()
    assert len(known) > 100
    assert {state_of(known, name, axioms) for name in known.names} == {"proved"}


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_are_given_by_name(name: str) -> None:
    assert len(library(name)) > 100
    if name == TASO:
        assert set(BUILT_IN) <= set(library(name).names)
    with pytest.raises(ValueError, match="one of"):
        library("theirs")
