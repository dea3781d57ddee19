"""Runs of training on graphs: what was collected, how long it took, what the agent saves on other graphs."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrlopt.agent.networks.candidate_controller import CandidateController
from torchrlopt.substitutions import load_library
from training.collectors.data_hash import data_hash
from training.config import Config
from training.device.prices import cost_of, typical_prices
from training.episodes.play import CandidateChooser, Key, play_group
from training.experiments.runs import Run, of_cluster
from training.samplers import HOMOGENEOUS
from training.scores.evaluate import held_out_graphs
from training.train import trainer_of
from training.trainer import Trainer

EVALUATIONS = 5  # of the agent in the course of a run, beside the one before it
TEST_KEYS = 10**7  # updates of these keys are not those of any collection


@dataclasses.dataclass(frozen=True)
class GraphOutcome:
    """What came out of a run.

    Attributes:
        data: hash of everything that was collected, of all updates.
        weights: hash of the networks in the end.
        collect_seconds: of each update, like the two that follow; see `Collector`. The first update, in which
            workers begin, is left out.
        broadcast_seconds: of the weights.
        learn_seconds: of the learner.
        real_steps: that were collected, in all updates.
        updates: after which the agent was measured.
        gains: what its episodes on test graphs save on average, as a share of the first cost.
    """

    data: str
    weights: str
    collect_seconds: list[float]
    broadcast_seconds: list[float]
    learn_seconds: list[float]
    real_steps: int
    updates: list[int]
    gains: list[float]


@dataclasses.dataclass(frozen=True)
class GraphRun(Run[GraphOutcome]):
    """See `Run`.

    Attributes:
        config: of the training; who collects is in it, too.
        test_graphs: held-out graphs on which the agent is measured; 0 for none. Rows "mf" and "plan" only.
        repetition: runs that differ in nothing else are there for the sake of their times.
        is_timed: whether its times are of interest.
    """

    config: Config
    test_graphs: int = 0
    repetition: int = 0
    is_timed: bool = False

    @property
    def name(self) -> str:
        """See `Run`."""
        config = self.config
        workers = f"{config.collector}{config.workers}"
        return f"graphs-{config.row}-{config.sampler}-{workers}-seed{config.seed}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        told = f"{load_library().hash} {typical_prices().to_json()} {HOMOGENEOUS}"
        if self.test_graphs:
            told += f" {EVALUATIONS} {TEST_KEYS}"
        if self.is_timed:
            told += f" {of_cluster(self.config.collector, self.config.ray)}"
        return told

    @property
    def num_steps(self) -> int:
        """Updates."""
        return self.config.updates

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return self.is_timed

    def read(self, kept: Mapping[str, Any]) -> GraphOutcome:
        """See `Run`."""
        return GraphOutcome(**kept)

    def make(self, tell: Callable[[], None]) -> GraphOutcome:
        """See `Run`. The folder of the training is not kept."""
        with tempfile.TemporaryDirectory() as folder:
            return _made(
                trainer_of(self.config, Path(folder), prices=typical_prices()), self.test_graphs, tell
            )


def _made(training: Trainer, test_graphs: int, tell: Callable[[], None]) -> GraphOutcome:
    everything = hashlib.sha256()
    collect = training.collector.collect

    def watched(state: bytes, keys: Sequence[Any]) -> list[Any]:
        found = collect(state, keys)
        everything.update(data_hash(found).encode())
        return found

    training.collector.collect = watched  # type: ignore[method-assign]
    logs: list[dict[str, float]] = []
    told: list[tuple[int, float]] = []
    updates = training.config.updates
    every = max(1, updates // EVALUATIONS)
    with training.collector:
        training.begin()
        for update in range(updates):
            if test_graphs and update % every == 0:
                told.append((update, gain(training.controller, training.config, test_graphs)))
            logs.append(training.step())
            tell()
    if test_graphs:
        told.append((updates, gain(training.controller, training.config, test_graphs)))

    def seconds(phase: str) -> list[float]:
        return [each[f"{phase}_seconds"] for each in logs[1:]]

    return GraphOutcome(
        everything.hexdigest(),
        data_hash(dict(training.controller.state_dict())),
        seconds("collect"),
        seconds("broadcast"),
        seconds("learn"),
        training.real_steps,
        [update for update, _ in told],
        [saved for _, saved in told],
    )


@torch.no_grad()
def gain(controller: Any, config: Config, count: int) -> float:
    """What episodes of a policy save on held-out graphs, as a share of the first cost; a mean.

    Graphs and random numbers are the same at every call and for every seed of the training.

    Args:
        controller: a `CandidateController`.
        config: of the training: rollouts and steps.
        count: of the graphs.
    """
    assert isinstance(controller, CandidateController)
    plain = dataclasses.replace(config, row="mf", original_share=1.0, reward="best_so_far")
    chooser = CandidateChooser(controller.eval())
    library, cost = load_library(), cost_of(typical_prices())
    saved = []
    for number, sample in enumerate(held_out_graphs(count)):
        played = play_group(chooser, library, cost, Key(0, TEST_KEYS, number), plain, sample.graph)
        saved.append(0.0 if played is None else float(played.returns.mean()))
    return sum(saved) / len(saved)
