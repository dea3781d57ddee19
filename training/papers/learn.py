"""Learn to optimise (Mayer 2023): a task with known answers, run by the learner and the collectors of graphs.

Sphere, Ackley and Rosenbrock, scaled to [-1, 1]^2. A state is a point; an action sets its first coordinate,
clipped to the domain; the second one, the free parameter, is fixed. The reward of a step is the decrease of
the function. An episode ends after a fixed number of steps.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from torchrlopt.agent.networks.actions import Draw
from training.collectors.collector import Collector
from training.collectors.data_hash import data_hash
from training.collectors.worker import state_from, state_of
from training.config import Config
from training.learning import ppo
from training.networks.candidate_controller import Decision
from training.random_keys import Purpose, generator, normal, torch_seed
from training.rollout import Rollout
from training.samplers import Place, draw_points

POOL = 100  # random start states from which uncertainty sampling takes one
EVALUATE_EVERY = 10  # updates
PARAMETERS = tuple(round(0.1 * i - 1, 1) for i in range(21))  # free parameters of the evaluation
STARTS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # first coordinates from which the evaluated policy starts
_TRUTH_POINTS = 100_000
_LEAST_LOG_STD, _MOST_LOG_STD = -4.0, 1.0
#: Learner settings; the thesis gives no values. All episodes of an update form one minibatch, and the
#: learning rate decays to 0 over the run.
LEARNER = Config(
    row="mf", learning_rate=1e-3, discount=0.9, epochs=2, entropy_weight=0.003, value_weight=0.5,
    minibatch_states=10**9, minibatch_nodes=10**9,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of two coordinates, scaled to [-1, 1]^2.

    Attributes:
        bound: b of its original domain [-b, b]^2.
        formula: of the coordinates in that domain.
        is_logarithmic: whether errors use logarithms, because its values range over decades.
    """

    bound: float
    formula: Callable[[np.ndarray, np.ndarray], np.ndarray]
    is_logarithmic: bool = False

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Values [...] at points [..., 2] in [-1, 1]."""
        scaled = points * self.bound
        return self.formula(scaled[..., 0], scaled[..., 1])

    def error(self, found: np.ndarray, best: np.ndarray) -> float:
        """Mean squared error of the found minima, or of the logarithms of 1 + them (MSE, MSLE)."""
        if self.is_logarithmic:
            found, best = np.log1p(found), np.log1p(best)
        return float(np.mean((found - best) ** 2))


def _ackley(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    waves = np.exp(0.5 * (np.cos(2 * np.pi * x) + np.cos(2 * np.pi * y)))
    return np.asarray(-20 * np.exp(-0.2 * np.sqrt(0.5 * (x**2 + y**2))) - waves + np.e + 20)


FUNCTIONS = {
    "sphere": Function(5.12, lambda x, y: x**2 + y**2),
    "ackley": Function(32.768, _ackley),
    "rosenbrock": Function(2.048, lambda x, y: (1 - x) ** 2 + 100 * (y - x**2) ** 2, is_logarithmic=True),
}


def _random_points(name: str, count: int) -> np.ndarray:
    return generator(Purpose.GROUND_TRUTH, list(FUNCTIONS).index(name)).uniform(-1, 1, count)


@functools.cache
def minimum(name: str, parameter: float) -> float:
    """The minimum for a free parameter, by random search as in the thesis (section 4.2.3)."""
    x = _random_points(name, _TRUTH_POINTS)
    return float(FUNCTIONS[name](np.stack([x, np.full_like(x, parameter)], axis=-1)).min())


@functools.cache
def deviation(name: str) -> float:
    """Standard deviation over the domain, the unit of the learnt returns."""
    return float(FUNCTIONS[name](_random_points(name, 2 * _TRUTH_POINTS).reshape(-1, 2)).std())


def _mlp(outputs: int) -> nn.Sequential:
    layers = [nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    return nn.Sequential(*layers)


class SquaredValue(nn.Module):
    """Estimates of returns, trained with squared error.

    Args:
        unit: of the learnt returns.
    """

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit = unit
        self.net = _mlp(1)

    def forward(self, states: Tensor) -> Tensor:
        """[B, 1] of [B, 2], in units."""
        found: Tensor = self.net(states)
        return found

    def loss(self, logits: Tensor, values: Tensor) -> Tensor:
        """See `training.networks.candidate_controller.Value`."""
        return (logits.squeeze(-1) - values / self.unit).square()


class GaussianPolicy(nn.Module):
    """Actions [B, 1] with a mean in [-1, 1] and a deviation, both depending on the state.

    It implements `Policy`. It uses double precision: these networks are so small that it costs nothing, and
    the probability of an action is the same to many digits whatever else is in its batch.

    Args:
        function: a name in `FUNCTIONS`.
    """

    def __init__(self, function: str) -> None:
        super().__init__()
        self.net = _mlp(2)
        self.value = SquaredValue(deviation(function))
        self.double()

    def collate(self, states: Sequence[Tensor]) -> Tensor:
        """Collate states [2] into one batch."""
        return torch.stack(list(states))

    def pick(self, states: Tensor, rows: Sequence[int]) -> list[Tensor]:
        """Some states of a batch."""
        return list(states[list(rows)])

    def size(self, state: Tensor) -> int:
        """All states have the same size."""
        return 1

    def distribution(self, states: Tensor) -> Normal:
        """Distribution of the actions in states [B, 2]."""
        mean, spread = self.net(states).chunk(2, dim=-1)
        log_std = _LEAST_LOG_STD + (_MOST_LOG_STD - _LEAST_LOG_STD) * spread.sigmoid()
        return Normal(mean.tanh(), log_std.exp(), validate_args=False)

    def act(self, states: Tensor, draw: Draw) -> tuple[Tensor, Decision]:
        """Actions [B, 1]; the mean without noise. `draw` gives standard normal noise."""
        told = self.distribution(states)
        actions = told.mean + told.stddev * draw([1] * len(states)).view_as(told.mean)
        return actions, self._decision(states, told, actions)

    def evaluate(self, states: Tensor, actions: Tensor) -> Decision:
        """See `Policy`."""
        return self._decision(states, self.distribution(states), actions)

    def entropy(self, states: Tensor) -> Tensor:
        """Entropy [B]."""
        return self.distribution(states).entropy().sum(-1)

    def _decision(self, states: Tensor, told: Normal, actions: Tensor) -> Decision:
        estimates = self.value(states)
        values = estimates.squeeze(-1) * self.value.unit
        return Decision(told.log_prob(actions).sum(-1), told.entropy().sum(-1), values, estimates)


@dataclasses.dataclass(frozen=True)
class DriverKey:
    """Identifies the episodes that one driver plays in one update of a run."""

    seed: int
    update: int
    driver: int


@dataclasses.dataclass(frozen=True)
class DriverTask:
    """The episodes that `DriverPlayer` plays. Results are rollouts.

    Attributes:
        function: a name in `FUNCTIONS`.
        sampler: of start states, a name in `training.samplers.SAMPLERS`.
        drivers: per update.
        episodes: per driver, played as one batch.
        steps: per episode.
    """

    function: str
    sampler: str = "random"
    drivers: int = 3
    episodes: int = 10
    steps: int = 2

    def keys(self, seed: int, update: int) -> list[DriverKey]:
        """Keys of all drivers of an update."""
        return [DriverKey(seed, update, driver) for driver in range(self.drivers)]

    @torch.no_grad()
    def play(self, policy: GaussianPolicy, key: DriverKey) -> Rollout:
        """Play the episodes of a key, [steps, episodes]."""
        of = FUNCTIONS[self.function]

        def doubt(units: np.ndarray) -> np.ndarray:
            return policy.entropy(torch.from_numpy(units * 2 - 1)).numpy()

        place = Place(key.seed, key.update, key.driver, self.drivers, self.episodes)
        points = draw_points(self.sampler, place, 2, doubt, POOL) * 2 - 1
        rng = generator(Purpose.EPISODE, key.seed, key.update, key.driver)
        noise = normal([rng] * self.episodes)
        height = of(points)
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(self.steps):
            states = torch.from_numpy(points)
            actions, told = policy.act(states, noise)
            points = np.stack([actions[:, 0].clamp(-1, 1).numpy(), points[:, 1]], axis=-1)
            fallen, height = height - of(points), of(points)
            rows.append((states, actions, told.log_prob, torch.from_numpy(fallen), told.value))
        states_seen, *columns = zip(*rows, strict=True)
        acted, log_probs, rewards, values = (torch.stack(column) for column in columns)
        ended = torch.zeros(self.steps, self.episodes, dtype=torch.bool)
        ended[-1] = True
        # Terminal, without bootstrapping: the thesis's agent has this many steps and no more.
        following = torch.cat([values, torch.zeros_like(values[:1])])
        flags = {"terminated": ended, "ended": ended, "active": torch.ones_like(ended)}
        return Rollout(list(states_seen), acted, log_probs, rewards, following, **flags)


class DriverPlayer:
    """See `training.collectors.worker.Player`.

    Args:
        task: whose episodes it plays.
    """

    def __init__(self, task: DriverTask) -> None:
        self._task = task
        self._policy = GaussianPolicy(task.function)

    def load(self, state: bytes) -> None:
        """Load all weights."""
        self._policy.load_state_dict(state_from(state))

    def play(self, key: DriverKey) -> Rollout:
        """See `DriverTask.play`."""
        return self._task.play(self._policy, key)


def merged(rollouts: Sequence[Rollout]) -> Rollout:
    """All episodes of an update in one rollout, so that each is compared with all others."""
    steps = range(len(rollouts[0].rewards))
    names = ("actions", "log_probs", "rewards", "values", "terminated", "ended", "active")
    columns = {name: torch.cat([getattr(each, name) for each in rollouts], dim=1) for name in names}
    return Rollout([torch.cat([each.states[t] for each in rollouts]) for t in steps], **columns)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        updates: after which the policy was evaluated.
        errors: of the policy at those updates, see `error_of`.
        data: hash of all collected data, over all updates.
        weights: hash of the final networks.
        broadcast_seconds: total over all updates, like the following.
        collect_seconds: see `Collector`.
        learn_seconds: of the learner.
    """

    updates: list[int]
    errors: list[float]
    data: str
    weights: str
    broadcast_seconds: float
    collect_seconds: float
    learn_seconds: float


@torch.no_grad()
def error_of(policy: GaussianPolicy, function: str) -> float:
    """How far the policy's likeliest action is above the minimum, over all parameters and starts.

    The thesis uses this measure (section 4.2.3) but does not state the policy's start points.
    """
    points = np.array([[start, parameter] for parameter in PARAMETERS for start in STARTS])
    found = policy.distribution(torch.from_numpy(points)).mean.numpy()
    best = np.array([minimum(function, parameter) for parameter in points[:, 1]])
    moved = np.stack([found[:, 0], points[:, 1]], axis=-1)
    return FUNCTIONS[function].error(FUNCTIONS[function](moved), best)


def train(
    task: DriverTask, seed: int, updates: int, workers: int = 1, tell: Callable[[], None] = lambda: None
) -> Outcome:
    """One run: collect, learn, and periodically evaluate the policy against known minima.

    Args:
        task: the episodes.
        seed: of networks and episodes.
        updates: training steps.
        workers: see `Collector`; the results do not depend on it.
        tell: called after each update.
    """
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(Purpose.NETWORKS, seed))
        policy = GaussianPolicy(task.function)
    optimiser = torch.optim.Adam(policy.parameters(), LEARNER.learning_rate, fused=True)
    measured = {0: error_of(policy, task.function)}
    everything = hashlib.sha256()
    seconds = np.zeros(3)
    with Collector(functools.partial(DriverPlayer, task), workers, share=None) as collector:
        collector.collect(state_of(policy), task.keys(seed, 0))  # start the workers before timing
        for update in range(updates):
            rollouts = collector.collect(state_of(policy), task.keys(seed, update))
            begin = time.perf_counter()
            for group in optimiser.param_groups:
                group["lr"] = LEARNER.learning_rate * (1 - update / updates)
            order = torch.Generator().manual_seed(torch_seed(Purpose.MINIBATCHES, seed, update))
            ppo.update(policy, optimiser, [merged(rollouts)], LEARNER, order)
            learning = time.perf_counter() - begin
            seconds += (collector.broadcast_seconds, collector.collect_seconds, learning)
            everything.update(data_hash(rollouts).encode())
            if (update + 1) % EVALUATE_EVERY == 0:
                measured[update + 1] = error_of(policy, task.function)
            tell()
    weights = data_hash(dict(policy.state_dict()))
    told = list(measured), list(measured.values()), everything.hexdigest(), weights
    return Outcome(*told, *map(float, seconds))
