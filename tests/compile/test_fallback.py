"""Which warnings are given, and how often: torchrlopt/compile/fallback.py."""

from __future__ import annotations

import logging

import pytest

from torchrlopt.compile.fallback import (
    HIDDEN,
    WARNINGS,
    Warnings,
    described,
    is_internal,
    keep_original,
    recoverable_errors,
    warn_without_gain,
)
from torchrlopt.errors import (
    CaptureError,
    LoweringError,
    ModelFormatError,
    RlOptError,
    UnsupportedError,
    VerificationError,
    WeightsError,
)
from torchrlopt.report import Status


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
    status = Status("rewritten")
    with caplog.at_level(logging.WARNING, "torchrlopt"):
        for number in range(3):
            keep_original(raised(UnsupportedError("no such thing", got=number)), status)
        for number in range(3):
            keep_original(raised(KeyError(number)), status)
    assert len(caplog.messages) == 2
    assert (status.kept, status.fallback_reason) == ("original", "KeyError: 2")


def test_reasons_warn_once_without_their_numbers(caplog: pytest.LogCaptureFixture) -> None:
    for reason in (
        "the graph draws random numbers (aten.rand)",
        "the graph draws random numbers (aten.randn)",
        "the rewritten graph is not faster: gain 0.001, min_gain 0.02",
        "the rewritten graph is not faster: gain 0.002, min_gain 0.02",
    ):
        warn_without_gain(Status("original", fallback_reason=reason))
    warn_without_gain(Status("original", fallback_reason=None))
    warn_without_gain(Status("rewritten", fallback_reason="none"))
    warn_without_gain(Status("original", fallback_reason="the graph has no operators"))
    assert len(caplog.messages) == 2


def test_a_bug_is_passed_over_only_for_users() -> None:
    assert issubclass(KeyError, recoverable_errors("fallback"))
    assert not issubclass(KeyError, recoverable_errors("raise"))
    for mode in ("fallback", "raise"):
        assert issubclass(UnsupportedError, recoverable_errors(mode))
        assert issubclass(MemoryError, recoverable_errors(mode))


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a"),
        RuntimeError("a bug"),
        CaptureError("AOTAutograd cannot trace the graph", got="RuntimeError()"),
        LoweringError("a dimension must be static", got="s0"),
        ModelFormatError("a value is declared with a type it cannot have"),
        VerificationError("the rewritten graph computes other numbers"),
        UnsupportedError("the original graph cannot be run on the inputs of the check", is_bug=True),
    ],
)
@pytest.mark.hides_errors
def test_our_bugs_are_counted_where_they_are_hidden(error: Exception) -> None:
    keep_original(error, Status())
    (text,) = HIDDEN.texts
    assert text == f"{type(error).__name__}: {described(error)}"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        WeightsError("a weight has no memory"),
        RlOptError("anything"),
        UnsupportedError("this executor runs on the CPU"),
        CaptureError("Dynamo cannot trace the model", got="...", is_bug=False),
        LoweringError("operators that ONNX does not have", got="aten.sort", is_bug=False),
        LoweringError("no region saves more than its borders cost", is_bug=False),
        LoweringError("OpenVINO refuses the model", got="...", is_bug=False),
        LoweringError(
            "OpenVINO was tried in a process of its own first, and it was not done after 120 s", is_bug=False
        ),
    ],
)
def test_reasons_of_the_user_and_of_the_machine_are_not(error: Exception) -> None:
    keep_original(error, Status())
    assert HIDDEN.texts == []
    assert not is_internal(error)
