"""The fuzzing machinery: crashes and hangs are detected, failures are stored, the bound is right."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from rich.console import Console

from tests.fuzz import __main__ as command
from tests.fuzz import shards
from tests.fuzz.kept import Case, format_case, keep, parse_case
from tests.fuzz.outcome import Total, failure_bound
from tests.fuzz.subjects import SUBJECTS, Subject
from tests.fuzz.troubled import Troubled

TROUBLED = Subject("trouble", "tests.fuzz.troubled:Troubled", 12, 12, 2.0)


def test_every_case_has_its_outcome_whatever_happens_to_the_process() -> None:
    found = dict(shards.run(TROUBLED.make, 0, range(12), 2, TROUBLED.slice_size, TROUBLED.limit_s))
    kinds = {index: outcome.kind for index, outcome in found.items()}
    assert kinds == {
        **dict.fromkeys(range(12), "right"), 3: "crashed", 5: "hung", 7: "raised", 8: "wrong", 9: "skipped",
    }  # fmt: skip
    assert found[7].reason == "ValueError: seven"
    assert "status -6" in found[3].reason


def test_a_fuzzer_that_cannot_be_made_is_an_error() -> None:
    broken = Subject("broken", "tests.fuzz.troubled:NoSuch", 4, 2, 2.0)
    with pytest.raises(RuntimeError, match="cannot be made"):
        list(shards.run(broken.make, 0, range(4), 1, 2, 2.0))


def test_a_kept_case_reads_back(tmp_path: Path) -> None:
    text = format_case("rules", {"steps": "a 0; b 1"}, "graph (x: f32[2]) {\n  return x\n}\n")
    path = keep(text, "output y: 1.0 before, 2.0 after", tmp_path)
    assert path == keep(text, "the same", tmp_path)
    case = parse_case(path.read_text(encoding="utf-8"))
    assert (case.what, case.fields, case.body[:7]) == ("rules", {"steps": "a 0; b 1"}, "graph (")
    assert TROUBLED.replay(Case("rules", {"n": "8"}, "")) == "replayed 8"


@pytest.mark.parametrize(
    ("num_cases", "num_failures", "bound"),
    # scipy.stats.beta.ppf(0.95, failures + 1, cases - failures)
    [(500, 0, 0.0059735), (20_000, 0, 0.00014978), (100, 1, 0.0465596), (10, 3, 0.6066242), (4, 4, 1.0)],
)
def test_the_bound_is_that_of_clopper_and_pearson(num_cases: int, num_failures: int, bound: float) -> None:
    assert failure_bound(num_cases, num_failures) == pytest.approx(bound, rel=1e-4)


def test_without_failures_the_bound_is_the_rule_of_three() -> None:
    for cases in (100, 1000, 10_000):
        assert failure_bound(cases, 0) == pytest.approx(3 / cases, rel=0.02)
    assert "at most 0.015 %" in command.bound_text(20_000, 0).replace("%", " %").replace("  ", " ")


def test_outcomes_are_added_up() -> None:
    total = Total()
    for index in range(7, 12):
        total.add(index, shards.guarded(Troubled(0), index))
    assert (total.num_compared, len(total.failures), dict(total.skipped)) == (4, 2, {"told": 1})


def test_the_command_shows_and_keeps_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SUBJECTS, "rules", TROUBLED)
    kept: list[str] = []
    monkeypatch.setattr(command, "keep", lambda text, reason: kept.append(text))
    monkeypatch.setattr(command.terminal, "console", lambda: Console(width=120))
    with pytest.raises(typer.Exit):
        command.main("rules", None, 0, 1, None, 8, tmp_path / "counts.csv", True)
    assert kept == [format_case("rules", {"n": "8"})]
    printed = capsys.readouterr().out
    assert "wrong, case 8: told" in printed
    assert "python -m tests.fuzz rules --seed 0 --only 8" in printed
    assert "1 failures in 1 cases" in printed
    with pytest.raises(typer.BadParameter, match="choose from: rules"):
        command.main("rulez")
