"""Seeds of the fuzzers in `cpp/`, and texts they found: each is refused or round-trips."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchrlopt import _C
from torchrlopt.errors import ModelFormatError, SubstitutionError

SEEDS = Path(__file__).parent / "cpp" / "seeds"


def texts(kind: str) -> list[Path]:
    return sorted((SEEDS / kind).iterdir())


@pytest.mark.parametrize("path", texts("graph_text"), ids=lambda path: path.stem)
def test_graph_text(path: Path) -> None:
    try:
        graph = _C.parse_graph(path.read_text(encoding="utf-8"))
    except ModelFormatError:
        return
    graph.check()
    assert _C.parse_graph(graph.text()).hash() == graph.hash()


@pytest.mark.parametrize("path", texts("substitution_text"), ids=lambda path: path.stem)
def test_substitution_text(path: Path) -> None:
    try:
        library = _C.Library(path.read_text(encoding="utf-8"))
    except SubstitutionError:
        return
    printed = "".join(library.text(name) for name in library.names)
    assert _C.Library(printed).hash == library.hash
