"""The choice among registry, with attempts and times that are given."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from torchrlopt.compile import autotune
from torchrlopt.errors import LoweringError
from torchrlopt.executors import registry
from torchrlopt.options import Options
from torchrlopt.report import Report, Timing

OTHERS = [name for name in registry.available("cpu") if name not in ("eager", "inductor")]
WHERE = torch.device("cpu")


def no_duel(first: Any, second: Any) -> Timing:
    raise AssertionError("there are no two to choose from")


def test_auto_goes_on_when_executors_fail() -> None:
    def attempt(options: Options, report: Report) -> Any:
        if options.executor != "inductor":
            raise LoweringError("cannot", got=options.executor)
        report.measured_before_ms, report.measured_after_ms = 2.0, 1.0
        return lambda *args: args

    auto = Options(executor="auto", cache=False)
    _, report = autotune.fastest(
        attempt, lambda *_: Timing(1.0, 1.0, 0.0, 0.0, 3), auto, Report(), "hash", WHERE
    )
    assert report.executor == "inductor"
    assert [choice.reason for choice in report.choices[:3]] == [
        "cannot; got: eager", "cannot; got: onnxruntime", "cannot; got: onnxruntime",
    ]  # fmt: skip

    def fail(options: Options, report: Report) -> Any:
        raise LoweringError("cannot", got=options.executor)

    with pytest.raises(LoweringError, match="eager"):
        autotune.fastest(fail, no_duel, auto, Report(), "hash", WHERE)
    slow = autotune.fastest(lambda options, report: None, no_duel, auto, Report(), "hash", WHERE)
    assert slow[0] is None


def test_auto_lets_graphs_duel_that_are_about_as_fast() -> None:
    after_ms = {"eager": 1.0, "onnxruntime": 0.95, "openvino": 0.96, "inductor": 0.5}

    def attempt(options: Options, report: Report) -> Any:
        report.measured_before_ms, report.measured_after_ms = 2.0, after_ms[options.executor]
        return options.executor

    seen = []

    def duel(first: Any, second: Any) -> Timing:
        seen.append((first, second))
        return Timing(1.0, 1.01, -0.01, 0.0, 3)  # the first is faster, whatever the other times said

    auto = Options(executor="auto", cache=False)
    lowered, report = autotune.fastest(attempt, duel, auto, Report(), "hash", WHERE)
    assert (lowered, report.executor) == ("inductor", "inductor")
    assert seen == [*(("eager", name) for name in OTHERS for _ in range(2)), ("inductor", "inductor")]


def test_graphs_that_have_lost_are_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cyclic:
        def __init__(self) -> None:
            self.itself = self

    built: list[weakref.ref[Cyclic]] = []
    alive: list[int] = []

    def attempt(options: Options, report: Report) -> Any:
        alive.append(sum(each() is not None for each in built))
        report.measured_before_ms, report.measured_after_ms = 4.0, 1.0 if len(built) == 1 else 1.9
        graph = Cyclic()
        built.append(weakref.ref(graph))
        return graph

    monkeypatch.setattr(registry, "available", lambda device_type: ("eager", "onnxruntime", "inductor"))
    gc.disable()
    try:
        autotune.fastest(attempt, no_duel, Options(executor="auto", cache=False), Report(), "hash", WHERE)
    finally:
        gc.enable()
    assert alive == [0, 1, 1, 1, 1]


def test_auto_does_not_try_far_slower_executors_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    after_ms = {"eager": 1.0, "onnxruntime": 2.1, "inductor": 1.9}
    tried: list[tuple[str, str]] = []

    def attempt(options: Options, report: Report) -> Any:
        tried.append((options.executor, options.searcher))
        report.measured_before_ms, report.measured_after_ms = 2.0, after_ms[options.executor]
        return options.executor

    monkeypatch.setattr(registry, "available", lambda device_type: tuple(after_ms))
    auto = Options(executor="auto", cache=False)
    _, report = autotune.fastest(attempt, no_duel, auto, Report(), "hash", WHERE)
    assert tried == [
        ("eager", "agent"), ("onnxruntime", "agent"), ("inductor", "agent"), ("inductor", "none"),
    ]  # fmt: skip
    assert report.choices[2].reason == "with a plan far slower"


def test_auto_chooses_again_where_other_executors_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def attempt(options: Options, report: Report) -> Any:
        tried.append(options.executor)
        report.measured_before_ms, report.measured_after_ms = (
            2.0,
            1.0 - 0.9 * (options.executor == "inductor"),
        )
        return options.executor

    def chosen() -> list[str]:
        tried.clear()
        autotune.fastest(
            attempt, lambda *_: Timing(1, 1, 0, 0, 3), Options(executor="auto"), Report(), "h", WHERE
        )
        return list(tried)

    monkeypatch.setattr(registry, "available", lambda device_type: ("eager", "inductor"))
    assert chosen() == ["eager", "inductor", "inductor"]
    assert chosen() == ["inductor"]
    monkeypatch.setattr(registry, "available", lambda device_type: ("eager",))
    assert chosen() == ["eager"]


def test_auto_stops_in_time() -> None:
    auto = Options(executor="auto", cache=False, autotune_s=0.0)
    _, report = autotune.fastest(lambda options, report: None, no_duel, auto, Report(), "hash", WHERE)
    assert [choice.reason for choice in report.choices[1:]] == ["the time was over"] * 2 * (len(OTHERS) + 1)
