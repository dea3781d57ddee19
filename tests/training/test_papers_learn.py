"""Learn to optimise: training/papers/learn.py."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from scipy import stats

from torchrlopt.agent.networks.actions import no_noise
from training.papers.learn import FUNCTIONS, DriverTask, GaussianPolicy, merged, minimum, train

SHORT = (DriverTask("rosenbrock", "heterogeneous"), 0, 12)


@pytest.mark.parametrize(
    ("name", "where", "corner"),
    [("sphere", 0.0, 2 * 5.12**2), ("ackley", 0.0, 21.5), ("rosenbrock", 1 / 2.048, 1.1 + 100 * 2.146**2)],
)
def test_functions_have_the_values_of_the_literature(name: str, where: float, corner: float) -> None:
    function = FUNCTIONS[name]
    assert function(np.array([where, where])) == pytest.approx(0.0, abs=1e-9)
    assert function(np.array([1.0, 1.0])) == pytest.approx(corner, rel=0.01)


@pytest.mark.parametrize("parameter", [-1.0, -0.3, 0.0, 0.4, 1.0])
def test_the_ground_truth_is_the_least_value(parameter: float) -> None:
    y = parameter * 2.048
    # Where the derivative of (1 - x)^2 + 100 (y - x^2)^2 is 0.
    roots = np.roots([400.0, 0.0, 2 - 400 * y, -2.0])
    x = roots[np.isreal(roots)].real / 2.048
    exact = FUNCTIONS["rosenbrock"](np.stack([x, np.full_like(x, parameter)], axis=-1)).min()
    assert minimum("rosenbrock", parameter) == pytest.approx(exact, rel=1e-4, abs=1e-4)
    assert minimum("sphere", parameter) == pytest.approx((5.12 * parameter) ** 2, abs=1e-5)


def test_errors_over_decades_are_taken_of_logarithms() -> None:
    found, best = np.array([9.0, 99.0]), np.array([0.0, 9.0])
    assert FUNCTIONS["ackley"].error(found, best) == pytest.approx((81 + 8100) / 2)
    assert FUNCTIONS["rosenbrock"].error(found, best) == pytest.approx(np.log(10) ** 2)


def test_a_policy_says_the_same_of_an_action_when_it_is_asked_again() -> None:
    torch.manual_seed(0)
    policy = GaussianPolicy("ackley")
    states = torch.rand(5, 2, dtype=torch.float64) * 2 - 1
    actions, told = policy.act(states, lambda sizes: torch.linspace(-2, 2, sum(sizes), dtype=torch.float64))
    likeliest, _ = policy.act(states, no_noise)
    distribution = policy.distribution(states)
    assert torch.equal(likeliest, distribution.mean)
    expected = stats.norm(distribution.mean.detach(), distribution.stddev.detach())
    np.testing.assert_allclose(told.log_prob.detach(), expected.logpdf(actions.detach())[:, 0])
    np.testing.assert_allclose(told.entropy.detach(), expected.entropy()[:, 0])
    again = policy.evaluate(policy.collate(policy.pick(states, [3])), actions[3:4])
    assert again.log_prob.item() == pytest.approx(told.log_prob[3].item(), abs=1e-12)


def test_a_step_earns_what_the_function_has_fallen_by() -> None:
    task = DriverTask("rosenbrock", episodes=40)
    with torch.no_grad():
        policy = GaussianPolicy("rosenbrock")
        policy.net[-1].weight.mul_(40)  # bold enough to leave the domain
    played = task.play(policy, task.keys(3, 4)[1])
    states = torch.stack(played.states)
    height = FUNCTIONS["rosenbrock"](states.numpy())
    assert played.rewards.shape == (2, 40)
    np.testing.assert_allclose(played.rewards[0], height[0] - height[1])
    assert torch.equal(states[0, :, 1], states[1, :, 1]), "the free parameter stays"
    assert torch.equal(states[1, :, 0], played.actions[0, :, 0].clamp(-1, 1))
    assert (played.actions[0].abs() > 1).any()
    assert played.ended[-1].all()
    assert not played.ended[0].any()


def test_episodes_side_by_side_are_those_of_their_drivers() -> None:
    task = DriverTask("ackley", "latin_hypercube")
    policy = GaussianPolicy("ackley")
    played = [task.play(policy, key) for key in task.keys(0, 0)]
    both = merged(played)
    assert both.rewards.shape == (2, 30)
    assert torch.equal(both.rewards[:, 10:20], played[1].rewards)
    assert torch.equal(both.states[1][20:], played[2].states[1])
    starts = both.states[0].numpy()
    cells = ((starts + 1) / 2 * 30).astype(int)
    assert np.array_equal(np.sort(cells, axis=0), np.arange(30)[:, None].repeat(2, 1))


@pytest.mark.nightly
def test_a_run_does_not_depend_on_who_collects() -> None:
    alone, apart = train(*SHORT), train(*SHORT, 2)
    assert (alone.data, alone.weights, alone.errors) == (apart.data, apart.weights, apart.errors)


def test_a_worker_that_is_killed_in_mid_run_changes_nothing() -> None:
    count = 0

    def tell() -> None:
        nonlocal count
        count += 1
        if count == 5:
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    alone, apart = train(*SHORT), train(*SHORT, 2, tell)
    assert count >= 5
    assert (alone.data, alone.weights, alone.errors) == (apart.data, apart.weights, apart.errors)


def test_the_learner_finds_where_minima_lie() -> None:
    outcome = train(*SHORT[:2], 100)
    assert min(outcome.errors) < 0.5 * outcome.errors[0]
    assert outcome.updates == list(range(0, 101, 10))
    assert min(outcome.broadcast_seconds, outcome.collect_seconds, outcome.learn_seconds) > 0
