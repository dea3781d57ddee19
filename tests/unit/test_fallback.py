"""What is told, and how often: torchrlopt/compile/fallback.py."""

from __future__ import annotations

import logging

import pytest

from torchrlopt.compile.fallback import (
    WARNINGS,
    Warnings,
    keep_original,
    passed_over,
    told,
    warn_without_gain,
)
from torchrlopt.errors import UnsupportedError
from torchrlopt.options import Options
from torchrlopt.report import Report


@pytest.fixture(autouse=True)
def no_earlier_warnings() -> None:
    WARNINGS.clear()


def raised(error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_one_warning_for_each_cause(caplog: pytest.LogCaptureFixture) -> None:
    own = Warnings()
    for cause in ("one", "one", "two"):
        own.warn(cause, f"because of {cause}")
    assert caplog.messages == [
        "rlopt keeps the original graph: because of one",
        "rlopt keeps the original graph: because of two",
    ]
    own.clear()
    own.warn("one", "again")
    assert len(caplog.messages) == 3


@pytest.mark.hides_errors
def test_causes_are_what_went_wrong_and_not_the_numbers_in_it(caplog: pytest.LogCaptureFixture) -> None:
    report = Report(kept="rewritten")
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        for number in range(3):
            keep_original(raised(UnsupportedError("no such thing", got=number)), report)
        for number in range(3):
            keep_original(raised(KeyError(number)), report)
    assert len(caplog.messages) == 2
    assert (report.kept, report.fallback_reason) == ("original", "KeyError: 2")


def test_errors_are_told_by_what_they_say() -> None:
    assert told(UnsupportedError("no such thing")) == "no such thing"
    assert told(OSError(28, "No space left on device")) == "OSError: [Errno 28] No space left on device"
    assert told(MemoryError()) == "MemoryError"


def test_reasons_warn_once_without_their_numbers(caplog: pytest.LogCaptureFixture) -> None:
    for reason in (
        "the graph draws random numbers (aten.rand)",
        "the graph draws random numbers (aten.randn)",
        "the rewritten graph is not faster: gain 0.001, min_gain 0.02",
        "the rewritten graph is not faster: gain 0.002, min_gain 0.02",
    ):
        warn_without_gain(Report(kept="original", fallback_reason=reason))
    warn_without_gain(Report(kept="original", fallback_reason=None))
    warn_without_gain(Report(kept="rewritten", fallback_reason="none"))
    warn_without_gain(Report(kept="original", fallback_reason="the graph has no operators"))
    assert len(caplog.messages) == 2


def test_a_bug_is_passed_over_only_for_users() -> None:
    assert issubclass(KeyError, passed_over(Options()))
    assert not issubclass(KeyError, passed_over(Options(on_error="raise")))
    for mode in ("fallback", "raise"):
        assert issubclass(UnsupportedError, passed_over(Options(on_error=mode)))
        assert issubclass(MemoryError, passed_over(Options(on_error=mode)))
