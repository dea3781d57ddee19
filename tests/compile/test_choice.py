"""The choice among executors, with predefined attempts and times: torchrlopt/compile/choice.py."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import pytest
import torch

from tests.compile.attempts import attempted, contest_of
from torchrlopt.compile import choice
from torchrlopt.compile.attempt import Attempt
from torchrlopt.errors import LoweringError
from torchrlopt.executors import registry
from torchrlopt.options import Options
from torchrlopt.report import Journal, Report, Timing

OTHERS = [name for name in registry.available("cpu") if name not in ("eager", "inductor")]
WHERE = torch.device("cpu")


def fastest(attempt: Any, duel: Any, options: Options, graph: str = "hash", price: float = 1.0) -> Attempt:
    """What `executor="auto"` makes of attempts that are given."""
    key = choice.key_of(options, graph, "content", WHERE)
    contest = contest_of(attempt, duel, options, lambda *_: price)
    return choice.fastest(contest, choice.all_variants(options, WHERE), key if options.cache else None)


def reported(*args: Any, **options: Any) -> Report:
    """The report of what `fastest` takes."""
    return fastest(*args, **options).journal.report()


NO_CACHE = Options(cache=False)


def by_default(attempt: Any, duel: Any, options: Options, runtimes: Any = ("onnxruntime",)) -> Attempt:
    """What `executor="default"` makes of them where these runtimes are predicted to win."""
    contest = contest_of(attempt, duel, options, enough=1.3)
    variants = [dataclasses.replace(options, executor=name) for name in (*runtimes, "eager")]
    return choice.fastest(contest, variants, "key" if options.cache else None)


def no_duel(first: Any, second: Any) -> Timing:
    raise AssertionError("there are no two to choose from")


@pytest.mark.hides_errors
def test_auto_goes_on_when_executors_fail() -> None:
    def attempt(options: Options, journal: Journal) -> Any:
        if options.executor != "inductor":
            raise LoweringError("cannot", got=options.executor)
        return attempted(options, journal, 2.0, 1.0)

    auto = Options(executor="auto", cache=False)
    report = reported(attempt, lambda *_: Timing(1.0, 1.0, 0.0, 0.0, 3), auto)
    assert report.executor == "inductor"
    assert [each.reason for each in report.choices[:3]] == [
        "cannot; got: eager", "cannot; got: onnxruntime", "cannot; got: onnxruntime",
    ]  # fmt: skip

    def fail(options: Options, journal: Journal) -> Any:
        raise LoweringError("cannot", got=options.executor)

    with pytest.raises(LoweringError, match="eager"):
        fastest(fail, no_duel, auto)
    slow = fastest(lambda options, journal: Attempt(options, journal), no_duel, auto)
    assert slow.run is None


def test_auto_lets_graphs_duel_that_are_about_as_fast() -> None:
    after_ms = {"eager": 1.0, "onnxruntime": 0.95, "openvino": 0.96, "inductor": 0.97}

    def attempt(options: Options, journal: Journal) -> Any:
        return attempted(options, journal, 2.0, after_ms[options.executor])

    seen = []

    def duel(first: Any, second: Any) -> Timing:
        seen.append((first, second))
        return Timing(1.0, 1.01, -0.01, 0.0, 3)  # the first is faster, whatever the other times said

    auto = Options(executor="auto", cache=False)
    found = fastest(attempt, duel, auto)
    assert (found.run, found.name) == ("eager", "eager")
    assert seen == [("eager", name) for name in OTHERS for _ in range(2)]


def test_graphs_that_have_lost_are_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cyclic:
        def __init__(self) -> None:
            self.itself = self

    built: list[weakref.ref[Cyclic]] = []
    alive: list[int] = []

    def attempt(options: Options, journal: Journal) -> Any:
        alive.append(sum(each() is not None for each in built))
        graph = Cyclic()
        built.append(weakref.ref(graph))
        return attempted(options, journal, 4.0, 1.0 if len(built) == 2 else 1.9, run=graph)

    monkeypatch.setattr(registry, "available", lambda device_type: ("eager", "onnxruntime", "openvino"))
    gc.disable()
    try:
        fastest(attempt, no_duel, Options(executor="auto", cache=False))
    finally:
        gc.enable()
    assert alive == [0, 1, 1, 1]


def test_auto_does_not_try_far_slower_executors_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    after_ms = {"eager": 1.0, "onnxruntime": 1.5, "inductor": 1.1}
    tried: list[tuple[str, str]] = []

    def attempt(options: Options, journal: Journal) -> Any:
        tried.append((options.executor, options.search.searcher))
        return attempted(options, journal, 2.0, after_ms[options.executor])

    monkeypatch.setattr(registry, "available", lambda device_type: tuple(after_ms))
    auto = Options(executor="auto", cache=False)
    report = reported(attempt, lambda *_: Timing(1.0, 1.0, 0.0, 0.0, 3), auto, price=0.5)
    assert tried == [
        ("eager", "agent"), ("onnxruntime", "agent"), ("inductor", "agent"), ("inductor", "none"),
    ]  # fmt: skip
    assert report.choices[2].reason == "with a plan far slower"


def test_auto_chooses_again_where_other_executors_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def attempt(options: Options, journal: Journal) -> Any:
        tried.append(options.executor)
        return attempted(options, journal, 2.0, 1.0 - 0.9 * (options.executor == "inductor"))

    def chosen() -> list[str]:
        tried.clear()
        fastest(attempt, lambda *_: Timing(1, 1, 0, 0, 3), Options(executor="auto"))
        return list(tried)

    monkeypatch.setattr(registry, "available", lambda device_type: ("eager", "inductor"))
    assert chosen() == ["eager", "inductor", "inductor"]
    assert chosen() == ["inductor"]
    monkeypatch.setattr(registry, "available", lambda device_type: ("eager",))
    assert chosen() == ["eager"]


def test_auto_stops_in_time() -> None:
    auto = Options(executor="auto", cache=False, autotune_s=0.0)
    report = reported(lambda options, journal: Attempt(options, journal), no_duel, auto)
    assert [each.reason for each in report.choices[1:]] == ["the time was over"] * 2 * (len(OTHERS) + 1)


@pytest.mark.parametrize(
    ("is_calm", "after_ms", "reason"),
    [
        (True, 1.5, "onnxruntime is far faster than the original"),  # 1.33 times as fast
        (True, 1.6, None),  # 1.25 times
        (False, 1.5, None),  # a time of a busy machine ends nothing
    ],
)
def test_default_tries_no_other_runtime_behind_one_that_is_far_faster_than_the_original(
    is_calm: bool, after_ms: float, reason: str | None
) -> None:
    def attempt(options: Options, journal: Journal) -> Any:
        return attempted(options, journal, 2.0, after_ms, is_calm=is_calm)

    found = by_default(attempt, lambda *_: Timing(1, 1, 0, 0, 3), NO_CACHE, ("onnxruntime", "openvino"))
    assert found.name == "onnxruntime"
    assert [each.reason for each in found.journal.report().choices] == [None, reason, None]


def test_default_takes_eager_where_it_is_faster_than_a_fast_runtime() -> None:
    found = by_default(gains(onnxruntime=1.2, eager=0.5), no_duel, NO_CACHE)
    assert (found.run, found.name) == ("eager", "eager")


def test_without_timing_the_first_that_runs_is_kept() -> None:
    def attempt(options: Options, journal: Journal) -> Attempt:
        journal.add(executor=options.executor)
        return Attempt(options, journal, run=options.executor)  # type: ignore[arg-type]  # stands for a graph

    found = by_default(attempt, no_duel, NO_CACHE)
    assert found.run == "onnxruntime"
    assert "nothing is timed" in str(found.journal.report().choices[1].reason)


def test_where_nothing_wins_the_report_is_eagers() -> None:
    attempts = gains(onnxruntime=3.0, eager=2.5)
    found = by_default(attempts, no_duel, NO_CACHE)
    assert found.timing is not None
    assert (found.run, found.name, found.timing.after_ms) == (None, "eager", 2.5)


def test_where_nothing_has_won_only_one_is_tried_in_the_next_process() -> None:
    def tried() -> list[str]:
        seen: list[str] = []

        def attempt(options: Options, journal: Journal) -> Attempt:
            seen.append(options.executor)
            return gains(onnxruntime=3.0, eager=2.5)(options, journal)

        assert by_default(attempt, no_duel, Options()).run is None
        return seen

    assert (tried(), tried()) == (["onnxruntime", "eager"], ["eager"])


def gains(**after_ms: float) -> Any:
    """Attempts that take so long where the original takes 2 ms; executors that are not named fail."""

    def attempt(options: Options, journal: Journal) -> Attempt:
        if options.executor not in after_ms:
            raise LoweringError("cannot", got=options.executor)
        journal.add_ms("lower", 5.0)
        found = attempted(options, journal, 2.0, after_ms[options.executor])
        return (
            found
            if after_ms[options.executor] < 2.0
            else dataclasses.replace(found, run=None, reason="slower")
        )

    return attempt


@pytest.mark.hides_errors
def test_what_won_once_and_wins_no_more_is_not_the_end() -> None:
    """The executor that an earlier process chose fails, or is slower than the original now."""
    auto = Options(executor="auto")

    def chosen(**after_ms: float) -> Any:
        duel = lambda *_: Timing(1.0, 1.0, 0.0, 0.0, 3)  # noqa: E731 - the first of two equals stays
        return fastest(gains(**after_ms), duel, auto, "turns")

    assert chosen(eager=1.9, inductor=0.5).run == "inductor"
    assert chosen(eager=1.0, inductor=3.0).run == "eager"
    assert chosen(eager=1.0).run == "eager"
    assert chosen(inductor=0.5).run == "inductor"


@pytest.mark.hides_errors
def test_where_what_lost_once_wins_now_all_are_tried() -> None:
    auto = Options(executor="auto")

    def chosen(**after_ms: float) -> Any:
        return fastest(gains(**after_ms), lambda *_: Timing(1.0, 0.9, 0.1, 0.0, 3), auto, "turns")

    with pytest.raises(LoweringError):
        chosen()
    assert chosen(eager=3.0, inductor=4.0).run is None
    assert chosen(eager=1.9, inductor=0.5).run == "inductor"
    assert chosen(eager=1.0, inductor=0.5).run == "inductor", "that is stored"


@pytest.mark.hides_errors
def test_a_choice_that_is_contradicted_is_made_anew() -> None:
    auto, corrected = Options(executor="auto"), list[Timing]()

    def chosen(**after_ms: float) -> Attempt:
        attempt = lambda *args: dataclasses.replace(gains(**after_ms)(*args), correct=corrected.append)  # noqa: E731
        return fastest(attempt, lambda *_: Timing(1.0, 1.0, 0.0, 0.0, 3), auto, "turns")

    found = chosen(eager=1.0, inductor=1.8)
    assert found.correct is not None
    assert chosen(eager=1.9, inductor=0.5).run == "eager"
    found.correct(Timing(1.0, 2.0, -1.0, 0.0, 9))
    assert [timing.gain for timing in corrected] == [-1.0]
    assert chosen(eager=1.9, inductor=0.5).run == "inductor"


def interrupted_at(position: int) -> Any:
    """Attempts of which one is interrupted; each is faster than the one before."""
    calls: list[Options] = []

    def attempt(options: Options, journal: Journal) -> Any:
        calls.append(options)
        if len(calls) == position:
            raise KeyboardInterrupt
        return attempted(options, journal, 1e6, 1e6 / 4 ** len(calls))

    return attempt


def test_ctrl_c_keeps_the_best_so_far_and_does_not_remember_it(caplog: pytest.LogCaptureFixture) -> None:
    auto = Options(executor="auto")
    for _ in range(2):
        found = fastest(interrupted_at(2), no_duel, auto)
        assert found.run is not None
        report = found.journal.report()
        assert report.executor == "eager"
        assert [each.reason for each in report.choices] == [
            None,
            *(["interrupted"] * (len(report.choices) - 1)),
        ]
        assert len(report.choices) > 2
    assert "interrupted: eager is the fastest so far" in caplog.text


def test_ctrl_c_before_anything_is_faster_ends_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        fastest(interrupted_at(1), no_duel, Options(executor="auto"))


def test_ctrl_c_in_a_duel_keeps_the_one_that_was_best() -> None:
    def duel(first: Any, second: Any) -> Timing:
        raise KeyboardInterrupt

    def attempt(options: Options, journal: Journal) -> Any:
        return attempted(options, journal, 2.0, 1.0)

    report = reported(attempt, duel, Options(executor="auto"))
    assert report.executor == "eager"
    assert [each.reason for each in report.choices[:2]] == [None, None], "both had been tried"
    assert {each.reason for each in report.choices[2:]} <= {"interrupted"}
