"""One run of learning to optimise: collect, learn, now and then measure the policy against known minima."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable

import numpy as np
import torch

from training.collectors.collector import AUTO, Collector
from training.collectors.data_hash import data_hash
from training.collectors.worker import state_of
from training.config import Config
from training.episodes.random_keys import Purpose, torch_seed
from training.learn_to_optimise.episodes import DriverTask, merged, new_policy
from training.learn_to_optimise.functions import FUNCTIONS, minimum
from training.learn_to_optimise.policy import GaussianPolicy
from training.learning import ppo

EVALUATE_EVERY = 10  # updates
PARAMETERS = tuple(round(0.1 * i - 1, 1) for i in range(21))  # at which a policy is measured
STARTS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # first coordinates from which it has to find the minimum

#: Of the learner; the thesis names no values. All episodes of an update are one minibatch, and the learning
#: rate falls to 0 in the course of the run.
LEARNER = Config(
    row="mf",
    learning_rate=1e-3,
    discount=0.9,
    epochs=2,
    entropy_weight=0.003,
    value_weight=0.5,
    minibatch_states=10**9,
    minibatch_nodes=10**9,
)


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a run depends on; its results depend on nothing else.

    Attributes:
        task: the episodes.
        seed: of networks and episodes.
        updates: training steps.
    """

    task: DriverTask
    seed: int
    updates: int


@dataclasses.dataclass(frozen=True)
class Workers:
    """Who collects; results do not depend on it.

    Attributes:
        kind: see `training.collectors.collector.new_crew`.
        count: of the workers.
        address: of a cluster of Ray.
    """

    kind: str = AUTO
    count: int = 1
    address: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came out of a run.

    Attributes:
        updates: after which the policy was measured.
        errors: of the policy then, see `error_of`.
        data: hash of everything that was collected, of all updates.
        weights: hash of the networks in the end.
        broadcast_seconds: of all updates together, like those that follow.
        collect_seconds: see `Collector`.
        learn_seconds: of the learner.
        replaced: workers that were lost and replaced.
    """

    updates: list[int]
    errors: list[float]
    data: str
    weights: str
    broadcast_seconds: float
    collect_seconds: float
    learn_seconds: float
    replaced: int = 0


@torch.no_grad()
def error_of(policy: GaussianPolicy, function: str) -> float:
    """How far the policy's likeliest action is above the minimum, for all parameters and starts.

    The mean squared error between the values that it finds and the least ones; for Rosenbrock between
    logarithms. The thesis measures so (section 4.2.3), but does not say from where the policy starts.
    """
    points = np.array([[start, parameter] for parameter in PARAMETERS for start in STARTS])
    found = policy.distribution(torch.from_numpy(points)).mean.numpy()
    best = np.array([minimum(function, parameter) for parameter in points[:, 1]])
    return FUNCTIONS[function].error(
        FUNCTIONS[function](np.stack([found[:, 0], points[:, 1]], axis=-1)), best
    )


def train(spec: Spec, workers: Workers | None = None, tell: Callable[[], None] = lambda: None) -> Outcome:
    """One run.

    Args:
        spec: what it depends on.
        workers: who collects; this process if None.
        tell: called after each update.
    """
    torch.set_num_threads(1)
    given = workers or Workers()
    task = spec.task
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(Purpose.NETWORKS, spec.seed))
        policy = new_policy(task.function)
    optimiser = torch.optim.Adam(policy.parameters(), LEARNER.learning_rate, fused=True)
    updates, errors = [0], [error_of(policy, task.function)]
    everything = hashlib.sha256()
    seconds = np.zeros(3)
    with Collector(task, given.kind, given.count, given.address, share=None) as collector:
        collector.collect(state_of(policy), task.keys(spec.seed, 0))  # workers begin before the clock does
        for update in range(spec.updates):
            state = state_of(policy)
            rollouts = collector.collect(state, task.keys(spec.seed, update))
            begin = time.perf_counter()
            for group in optimiser.param_groups:
                group["lr"] = LEARNER.learning_rate * (1 - update / spec.updates)
            order = torch.Generator().manual_seed(torch_seed(Purpose.MINIBATCHES, spec.seed, update))
            ppo.update(policy, optimiser, [merged(rollouts)], LEARNER, order)
            learning = time.perf_counter() - begin
            seconds += (collector.broadcast_seconds, collector.collect_seconds, learning)
            everything.update(data_hash(rollouts).encode())
            if (update + 1) % EVALUATE_EVERY == 0:
                updates.append(update + 1)
                errors.append(error_of(policy, task.function))
            tell()
        replaced = collector.replaced
    weights = data_hash(dict(policy.state_dict()))
    return Outcome(updates, errors, everything.hexdigest(), weights, *map(float, seconds), replaced)
