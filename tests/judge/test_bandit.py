"""The choice among candidates by the times of calls: torchrlopt/judge/bandit.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from torchrlopt.judge.bandit import Bandit


def played(bandit: Bandit, means: Sequence[float], calls: int, seed: int = 0) -> list[int]:
    """Make calls of a millisecond or so; return the candidates that ran."""
    rng, made = np.random.default_rng(seed), []
    for at in range(calls):
        which = bandit.choose()
        bandit.note(which, means[which] * float(np.exp(0.03 * rng.normal())), float(at))
        made.append(which)
    return made


def bandit(count: int, seed: int = 0) -> Bandit:
    return Bandit(np.random.default_rng(seed), count)


def test_a_single_candidate_is_chosen_without_a_call() -> None:
    alone = bandit(1)
    assert alone.is_over
    assert (alone.choose(), alone.best) == (0, 0)


def test_each_is_seen_before_the_choice_ends_and_hopeless_ones_leave_early() -> None:
    found = bandit(3)
    made = played(found, (1.0, 0.7, 5.0), 60)
    assert set(made) == {0, 1, 2}
    assert found.is_over
    assert found.best == 1
    assert 2 not in found.live
    assert made.count(2) <= 4
    assert sum(found.chances.values()) == pytest.approx(1)
    assert found.chances[1] >= found.CERTAIN
    assert np.exp(found.log_ratio(1, 0)) == pytest.approx(0.7, rel=0.05)
    assert played(found, (1.0, 0.7, 5.0), 5) == [1] * 5


@pytest.mark.parametrize("ms", [0.5, 2.0])
def test_one_that_enters_later_reopens_the_choice(ms: float) -> None:
    found = bandit(2)
    played(found, (1.0, 1.5), 60)
    assert found.is_over
    late = found.enter()
    assert not found.is_over
    assert late in played(found, (1.0, 1.5, ms), 60)
    assert found.is_over
    assert found.best == (late if ms < 1 else 0)


@pytest.mark.parametrize("slow", [2.0, 5.0, 20.0])
@pytest.mark.parametrize("means", [(1.0, 1.3), (1.3, 1.0)])
def test_one_slow_first_call_does_not_decide(means: tuple[float, float], slow: float) -> None:
    fastest = int(np.argmin(means))
    for seed in range(20):
        found, rng, last, is_first = bandit(2), np.random.default_rng(seed), -1, True
        for at in range(200):
            which = found.choose()
            ms = means[which] * float(np.exp(0.03 * rng.normal()))
            if is_first and which == last == fastest:  # the first call that counts
                ms, is_first = ms * slow, False
            found.note(which, ms, float(at))
            last = which
        assert (found.best, is_first) == (fastest, False)


def test_one_that_fails_leaves_even_if_it_is_next() -> None:
    found = bandit(3)
    found.note(0, 1.0, 0.0)  # behind another's call: once more
    assert found.choose() == 0
    found.leave(0)
    assert found.choose() == 1
    assert 0 not in played(found, (1.0, 1.0, 2.0), 40)
    assert found.best == 1
    found.note(0, 0.1, 50.0)  # a call that was under way
    assert found.best == 1


def test_a_call_that_nobody_timed_is_another_call() -> None:
    found = bandit(2)
    found.note(0, 1.0, 0.0)
    found.skip(1)
    found.note(0, 3.0, 1.0)  # the caches are the other's again
    assert found.choose() == 0
    assert found.chances == {}
