"""Regression tests: replays every failure that was ever stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.kept import FOLDER, parse_case
from tests.fuzz.subjects import SUBJECTS

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_stays_mended(path: Path) -> None:
    case = parse_case(path.read_text(encoding="utf-8"))
    assert SUBJECTS[case.what].replay(case) == ""
