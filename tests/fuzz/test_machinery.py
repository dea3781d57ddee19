"""The fuzzing machinery: crashes and hangs are detected, and failures are stored."""

from __future__ import annotations

import pytest
import typer
from rich.console import Console

from tests.fuzz import __main__ as command
from tests.fuzz import shards
from tests.fuzz.kept import format_case
from tests.fuzz.subjects import SUBJECTS, Subject

TROUBLED = Subject("trouble", "tests.fuzz.troubled:Troubled", 12, 12, 2.0)


def test_every_case_has_its_outcome_whatever_happens_to_the_process() -> None:
    found = dict(shards.run(TROUBLED.make, 0, range(12), 2, TROUBLED.slice_size, TROUBLED.limit_s))
    kinds = {index: outcome.kind for index, outcome in found.items()}
    assert kinds == {
        **dict.fromkeys(range(12), "right"), 3: "crashed", 5: "hung", 7: "raised", 8: "wrong", 9: "skipped",
    }  # fmt: skip
    assert found[7].reason == "ValueError: seven"
    assert "status -6" in found[3].reason


def test_the_command_shows_and_keeps_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SUBJECTS, "rules", TROUBLED)
    kept: list[str] = []
    monkeypatch.setattr(command, "keep", lambda text, reason: kept.append(text))
    monkeypatch.setattr(command.terminal, "console", lambda: Console(width=120))
    with pytest.raises(typer.Exit):
        command.main("rules", None, 0, 1, None, 8, True)
    assert kept == [format_case("rules", {"n": "8"})]
    printed = capsys.readouterr().out
    assert "wrong, case 8: told" in printed
    assert "python -m tests.fuzz rules --seed 0 --only 8" in printed
    assert "1 failures in 1 cases" in printed
    with pytest.raises(typer.BadParameter, match="choose from: rules"):
        command.main("rulez")
