"""How long stored timing verdicts are trusted: torchrlopt/judge/stored.py and its users."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from typing import Any

import pytest
import torch

import torchrlopt
from tests.compile.attempts import attempted, contest_of
from tests.e2e.models import Branches, build
from torchrlopt.compile import backend, choice
from torchrlopt.executors import registry
from torchrlopt.judge import stored, timing
from torchrlopt.judge.policy import Policy
from torchrlopt.options import Options
from torchrlopt.plan.planning import plan_store
from torchrlopt.plan.store import PlanStore
from torchrlopt.report import Journal, Report, Timing

DAY_S = 86_400.0
CLEAR = Timing(before_ms=2.0, after_ms=1.0, gain=0.5, spread=0.01, num_rounds=9)


@pytest.mark.parametrize(
    ("age_s", "spread", "wanted"),
    [
        (0.0, 0.01, True),
        (89 * DAY_S, 0.01, True),
        (91 * DAY_S, 0.01, False),
        (600.0, 0.3, True),  # not again in every process while the noise lasts
        (2 * 3600.0, 0.3, False),
        (-600.0, 0.01, False),  # the clock was put back: nobody knows how old it is
        (0.0, -1.0, False),
        (0.0, float("nan"), False),
        (float("nan"), 0.01, False),
        (0.0, "0.01", False),
        (0.0, None, False),
        (0.0, 10**400, False),
    ],
)
def test_a_verdict_holds_until_it_is_old(age_s: float, spread: Any, wanted: bool) -> None:
    assert stored.holds(time.time() - age_s, spread) == wanted


@pytest.mark.parametrize(
    ("stored_gain", "new_gain", "spread", "wanted"),
    [
        (0.3, 0.28, 0.01, False),
        (0.3, 0.25, 0.01, False),  # other data in the caches
        (0.3, 0.15, 0.01, True),
        (0.3, -0.1, 0.01, True),
        (0.3, -0.1, 0.5, False),  # within the spreads
        (0.05, -0.01, 0.01, True),  # the opposite
        (-0.5, 0.2, 0.01, True),
        (-0.5, -0.45, 0.01, False),
    ],
)
def test_a_verdict_is_contradicted_beyond_the_spreads(
    stored_gain: float, new_gain: float, spread: float, wanted: bool
) -> None:
    old, new = (Timing(1.0, 1 - gain, gain, spread, 16) for gain in (stored_gain, new_gain))
    assert Policy().is_contradicted(old, new) == wanted


def test_a_verdict_of_a_busy_machine_is_taken_again_soon() -> None:
    for age_s, wanted in ((600.0, True), (2 * 3600.0, False)):
        assert stored.holds(time.time() - age_s, 0.01, is_calm=False) == wanted
        busy = dataclasses.replace(CLEAR, is_calm=False, taken_at=time.time() - age_s)
        assert (stored.timing_from(dataclasses.asdict(busy)) is not None) == wanted


def test_a_timing_comes_back_as_it_was_stored() -> None:
    assert stored.timing_from(dataclasses.asdict(CLEAR)) == CLEAR
    assert stored.timing_from(None) is None
    old = dataclasses.replace(CLEAR, taken_at=time.time() - 91 * DAY_S)
    assert stored.timing_from(dataclasses.asdict(old)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"gain": float("nan")},
        {"before_ms": float("inf")},
        {"after_ms": 0.0},
        {"before_ms": "fast"},
        {"before_ms": 10**400},
        {"num_rounds": None},
        {"num_rounds": 0},
        {"spread": [1]},
    ],
)
def test_a_timing_with_numbers_that_are_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        stored.timing_from(dataclasses.asdict(CLEAR) | change)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None) -> list[Timing]:
    """Takes the place of the clock: gives the first timing, and notes how often it was asked."""
    asked: list[Timing] = []

    def measure(*args: Any, **options: Any) -> Timing:
        asked.append(dataclasses.replace(CLEAR, taken_at=time.time()))
        return asked[-1]

    monkeypatch.setattr(timing, "measure", measure)
    return asked


def optimise() -> Report:
    backend.reset()
    torch._dynamo.reset()
    model, x = build(Branches), torch.randn(5, 16)
    return torchrlopt.optimise(model, x, searcher="greedy", on_error="raise").report


def entry() -> tuple[str, dict[str, Any]]:
    """The one plan in the store, with its key."""
    store = plan_store()
    ((key,),) = store.rows("select key from plans")
    found = PlanStore(store.path.parent).get(key)
    assert found is not None
    return key, found


def test_a_verdict_is_stored_with_its_spread_rounds_and_time(timed: list[Timing]) -> None:
    begin = time.time()
    optimise()
    timing = entry()[1]["timing"]
    assert (timing["spread"], timing["num_rounds"]) == (0.01, 9)
    assert begin <= timing["taken_at"] <= time.time()


@pytest.mark.parametrize(
    ("change", "is_asked_again"),
    [
        ({}, False),
        ({"taken_at": 0.0}, True),
        ({"spread": 0.3, "taken_at": -7200.0}, True),
    ],
)
def test_an_old_or_noisy_verdict_is_taken_again(
    timed: list[Timing], change: dict[str, Any], is_asked_again: bool
) -> None:
    optimise()
    key, found = entry()
    if change.get("taken_at") == -7200.0:
        change = {**change, "taken_at": time.time() - 7200.0}
    found["timing"] |= change
    plan_store().put(key, found)
    report = optimise()
    assert report.kept == "rewritten"
    assert len(timed) == 1 + is_asked_again
    stored = entry()[1]["timing"]
    assert stored["taken_at"] == timed[-1].taken_at, "the new verdict is stored"
    assert optimise().is_cache_hit
    assert len(timed) == 1 + is_asked_again


def steps(*given: Any) -> dict[str, Any]:
    return {"steps": list(given), "costs_ms": [1.0] * len(given)}


@pytest.mark.parametrize(
    ("part", "change"),
    [
        (None, {"verified": {"error": "small"}}),
        (None, {"verified": {"error": -1.0}}),
        (None, {"verified": {}}),
        (None, {"plan": None}),
        (None, {"plan": {"steps": []}}),
        (None, {"timing": 5}),
        ("timing", {"after_ms": "soon"}),
        ("timing", {"num_rounds": []}),
        ("plan", {"library_hash": "another"}),
        ("plan", {"graph_hash": "another"}),
        ("plan", {"cost_before_ms": "1e999"}),
        ("plan", {"costs_ms": []}),
        ("plan", {"steps": "steps"}),
        ("plan", steps(5)),
        ("plan", steps(["no-such-substitution", 0])),
        ("plan", steps(["", -1])),
        ("plan", steps([None, None])),
    ],
)
def test_a_poisoned_entry_is_a_miss(timed: list[Timing], part: str | None, change: dict[str, Any]) -> None:
    optimise()
    key, found = entry()
    changed = found | (change if part is None else {part: found[part] | change})
    plan_store().put(key, changed)
    report = optimise()
    assert not report.is_cache_hit
    assert report.kept == "rewritten"


@pytest.mark.parametrize("location", ["1e999", str(2**70), "-1", "1000000", "null"])
def test_a_step_nowhere_is_a_miss(timed: list[Timing], location: str) -> None:
    optimise()
    key, found = entry()
    found["plan"]["steps"][0][1] = "LOCATION"
    text = json.dumps(found).replace('"LOCATION"', location)
    digest = hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()
    assert plan_store().write(
        lambda db: db.execute("update plans set payload = ?, digest = ? where key = ?", (text, digest, key))
    )
    assert not optimise().is_cache_hit


def chosen(monkeypatch: pytest.MonkeyPatch, tried: list[str]) -> None:
    def attempt(options: Options, journal: Journal) -> Any:
        tried.append(options.executor)
        after_ms = 1.0 - 0.9 * (options.executor == "inductor")
        return attempted(options, journal, 2.0, after_ms, spread=0.01)

    monkeypatch.setattr(registry, "available", lambda device_type: ("eager", "inductor"))
    monkeypatch.setattr(choice.gc, "collect", lambda: 0)
    auto, where = Options(executor="auto"), torch.device("cpu")
    contest = contest_of(attempt, lambda *_: CLEAR, auto)
    choice.fastest(contest, choice.all_variants(auto, where), choice.key_of(auto, "old", "", where))


@pytest.mark.parametrize(
    ("change", "is_tried_again"),
    [
        ({}, False),
        ({"taken_at": 0.0}, True),
        ({"taken_at": "yesterday"}, True),
        ({"spread": None}, True),
        ({"executor": "auto"}, True),
        ({"executor": ["inductor"]}, True),
        ({"searcher": 5}, True),
    ],
)
def test_an_old_or_poisoned_choice_is_made_again(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], is_tried_again: bool
) -> None:
    tried: list[str] = []
    chosen(monkeypatch, tried)
    assert tried == ["eager", "inductor", "inductor"]
    key, found = entry()
    plan_store().put(key, found | change)
    tried.clear()
    chosen(monkeypatch, tried)
    assert tried == (["eager", "inductor", "inductor"] if is_tried_again else ["inductor"])
    _, after = entry()
    assert (after["taken_at"] == found["taken_at"]) is not is_tried_again, "using a choice does not renew it"


@pytest.mark.parametrize(
    ("gain", "spread", "num_rounds", "is_calm", "is_bound", "is_faster"),
    [
        (0.08, 0.01, 9, True, False, True),
        (0.08, 0.05, 2, True, False, False),  # two rounds agree by chance
        (0.05, 0.03, 3, True, False, False),
        (0.05, 0.06, 9, True, False, True),  # many rounds: their quartiles are known better than one round is
        (0.05, 0.10, 9, True, False, False),
        (0.50, 0.01, 3, False, False, False),  # the process hardly had its processors
        (0.55, 0.10, 9, False, False, True),
        (0.05, 0.20, 9, False, True, True),  # a bound: the gain is larger
        (0.01, 0.00, 41, True, False, False),  # less than is asked for
    ],
)
def test_nothing_is_chosen_on_a_gain_that_noise_may_have_made(
    gain: float, spread: float, num_rounds: int, is_calm: bool, is_bound: bool, is_faster: bool
) -> None:
    timing = Timing(1.0, 1.0 - gain, gain, spread, num_rounds, is_calm=is_calm, is_bound=is_bound)
    assert Policy().is_faster(timing) == is_faster
    assert Policy(min_gain=-10.0).is_faster(timing), "who asks for no gain accepts what noise says"


@pytest.mark.parametrize(
    ("before_ms", "gain", "wanted"),
    [(2.0, -0.05, True), (2.0, -0.005, False), (0.006, -0.05, False), (0.006, -0.5, True), (2.0, 0.5, False)],
)
def test_a_smaller_file_is_refused_if_it_is_clearly_slower(
    before_ms: float, gain: float, wanted: bool
) -> None:
    """By more than noise, and by more than two builds of one file differ."""
    found = Timing(before_ms, before_ms * (1 - gain), gain, 0.01, 16)
    assert Policy().is_clearly_slower(found) is wanted
