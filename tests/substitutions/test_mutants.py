"""The checker refuses our deliberately wrong substitutions; otherwise its approval would prove nothing."""

from __future__ import annotations

import re

import pytest

from tests.substitutions.mutants import MUTANTS
from torchrlopt import _C, _tools
from torchrlopt.substitutions import library_text

_BLOCKS = {
    block.split()[1]: block
    for block in re.split(r"^(?=substitution )", library_text(), flags=re.MULTILINE)[1:]
}


def _ids() -> list[str]:
    return [f"{name}-{index}" for index, (name, _, _) in enumerate(MUTANTS)]


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS, ids=_ids())
def test_is_refused(name: str, old: str, new: str) -> None:
    assert old in _BLOCKS[name], "the mutant no longer fits the library"
    library = _C.Library(_BLOCKS[name].replace(old, new))
    results = {each: _tools.verify(library, each) for each in library.names}
    passed = [each for each, result in results.items() if result["ok"] and result["num_bindings"] >= 200]
    assert len(passed) < len(results), f"{_BLOCKS[name]}\npasses with {old!r} replaced by {new!r}"
