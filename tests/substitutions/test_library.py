"""The shipped library: every substitution is checked by exact evaluation, in all possible contexts."""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis
import pytest

from torchrlopt import _C, _tools
from torchrlopt.errors import SubstitutionError
from torchrlopt.substitutions import library_text, load, load_library

LIBRARY = load_library()
#: Instances of each, and no more than that where the profile asks for more; fewer under sanitizers.
NUM_INSTANCES = min(100, hypothesis.settings.default.max_examples)
MORE_INSTANCES = 200  # as for the records of proofs
#: Contexts that any pattern can stand in; the others need an intermediate or two inputs.
ALWAYS_POSSIBLE = {"plain", "second consumer", "shared input", "overlap"}


@pytest.mark.parametrize("name", LIBRARY.names)
def test_is_sound(name: str) -> None:
    result = _tools.verify(LIBRARY, name, bindings=NUM_INSTANCES)
    assert result["ok"], f"{LIBRARY.text(name)}\n{result['reason']}\n{result['counter_example']}"
    assert result["num_bindings"] >= NUM_INSTANCES
    assert set(result["contexts"]) >= ALWAYS_POSSIBLE


@pytest.mark.nightly
@pytest.mark.skipif(hypothesis.settings.default.max_examples < MORE_INSTANCES, reason="the profile has fewer")
def test_all_are_sound_in_as_many_instances_as_records_say() -> None:
    unsound = [
        name for name in LIBRARY.names if not _tools.verify(LIBRARY, name, bindings=MORE_INSTANCES)["ok"]
    ]
    assert unsound == []


def test_every_substitution_is_parsed() -> None:
    written = re.findall(r"^substitution ", library_text(), flags=re.MULTILINE)
    assert len(written) >= 90
    assert len(LIBRARY) == len(set(LIBRARY.names)) >= len(written)


@pytest.mark.parametrize("name", LIBRARY.names)
def test_text_is_canonical(name: str) -> None:
    """What is printed reads back as the same substitution."""
    again = _C.Library(LIBRARY.text(name))
    assert again.names == [name]
    assert again.text(name) == LIBRARY.text(name)
    assert again.is_exact(name) == LIBRARY.is_exact(name)


def test_malformed_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_good.txt").write_text("substitution drop\n  y = Neg(x)\n=>\n  y = x\n", encoding="utf-8")
    wrong = "# family: clean\nsubstitution wrong\n  y = Nge(x)\n=>\n  y = x\n"
    (tmp_path / "b_bad.txt").write_text(wrong, encoding="utf-8")
    monkeypatch.setattr(load, "_FOLDER", tmp_path)
    load_library.cache_clear()
    try:
        with pytest.raises(SubstitutionError, match=r"unknown operator 'Nge'.*line 3.*b_bad\.txt"):
            load_library()
    finally:
        load_library.cache_clear()
