"""Ways to choose among candidates, on recordings whose best candidate is known."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.shared.choosing import WAYS, Replay

MEANS = (10.0, 8.0, 12.0, 6.0, 30.0)


def recording(noise: float, seed: int = 0) -> Replay:
    """400 rounds of five candidates, in phases of which one takes twice as long as the other."""
    rng = np.random.default_rng(seed)
    phase = np.where(np.sin(np.arange(400) / 7) > 0, 1.0, 2.0)[:, None, None]
    times = np.array(MEANS)[:, None] * phase * np.exp(noise * np.abs(rng.normal(size=(400, 5, 2))))
    times[:, :, 0] *= 1.2  # behind another's call
    return Replay(np.cumsum(times.sum(axis=(1, 2))), times)


def test_a_replay_takes_the_times_of_its_moment() -> None:
    replay = recording(0.0)
    assert [replay.call(3), replay.call(3), replay.call(0)] == pytest.approx([7.2, 6.0, 12.0])
    assert replay.spent == pytest.approx(sum(replay.made)) == pytest.approx(25.2)


@pytest.mark.parametrize("way", sorted(set(WAYS) - {"default"}))
def test_the_best_candidate_is_found(way: str) -> None:
    found = [WAYS[way](recording(0.02, seed), 300, np.random.default_rng(seed)) for seed in range(5)]
    assert found.count(3) >= 4


def test_slow_phases_do_not_mislead_the_bandit_and_it_stops() -> None:
    replay = recording(0.02)
    assert WAYS["bandit"](replay, 400, np.random.default_rng(0)) == 3
    best = recording(0.02)
    for _ in range(400):
        best.call(3)
    assert replay.spent < 1.1 * best.spent
    assert len(set(replay.made[-50:])) > 1
    assert replay.last == 3
