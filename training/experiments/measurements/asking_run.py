"""A run in which one row measures the graphs of one space, as many as it likes."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchrlopt import _C
from training.config import Config
from training.device.prices import cost_of, typical_prices
from training.dream_trainer import DreamTrainer
from training.episodes.answers import Answers
from training.experiments.asking.learners import LEARNERS
from training.experiments.asking.orders import ORDERS, Order, asked_by, by_belief
from training.experiments.asking.space import Space
from training.experiments.measurements.forecast_run import ForecastRun
from training.experiments.measurements.space_run import MeasuredSpace, SpaceRun
from training.experiments.runs import Run, finished
from training.real_trainer import RealTrainer
from training.train import trainer_of

FORETOLD = "belief_foretold"  # begins with what networks foretell in place of prices
ROWS = (*ORDERS, FORETOLD, *LEARNERS)
_MOST_STEPS = 25  # of an episode


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a run leaves.

    Attributes:
        order: positions of the graphs that were measured, each once.
        real_steps: of episodes.
        seconds: on the clock.
    """

    order: list[int]
    real_steps: int
    seconds: float

    def regret(self, space: MeasuredSpace, seed: int) -> np.ndarray:
        """[N], by how much the best after n measurements is slower than the fastest, as a share.

        Of the graphs measured so far the one is taken that was told to be fastest; compared are true times,
        with that of `space.fastest`. Where a row stops asking, its last choice stays.
        """
        told, true = space.told(seed), space.true
        times = told[self.order]
        is_best = times == np.minimum.accumulate(times)
        chosen = np.maximum.accumulate(np.where(is_best, np.arange(len(times)), 0))
        found = true[np.asarray(self.order)[chosen]] / true[space.fastest] - 1
        return np.concatenate([found, np.full(len(true) - len(found), found[-1])])


@dataclasses.dataclass(frozen=True)
class AskingRun(Run[Asked]):
    """See `Run`.

    Attributes:
        row: one of `ROWS`.
        space: what is measured.
        seed: of the row, and of which calls a measurement is made of.
        updates: of a row that is trained; else 0.
        forecast: that row `FORETOLD` begins with.
        out: folder of the experiments.
    """

    row: str
    space: SpaceRun
    seed: int
    updates: int
    out: Path = dataclasses.field(compare=False)
    forecast: ForecastRun | None = None

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"asking-{self.row}-{self.space.subject}-{self.space.executor}-{self.updates}-seed{self.seed}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        settings = self.config.settings() if self.row in LEARNERS else ""
        return f"{settings} {typical_prices(self.space.executor).to_json()}"

    @property
    def num_steps(self) -> int:
        """Updates."""
        return max(1, self.updates)

    @property
    def needs(self) -> Sequence[Run[Any]]:
        """See `Run`."""
        return (self.space,) if self.forecast is None else (self.space, self.forecast)

    @property
    def config(self) -> Config:
        """Arguments of the training; the share of the time that is saved is what an episode earns."""
        given = {"graph": self.space.subject, "seed": self.seed, "updates": self.updates}
        return Config.of_row(self.row, **{**given, "max_steps": _MOST_STEPS, **LEARNERS[self.row]})

    def make(self, tell: Callable[[], None]) -> Asked:
        """See `Run`."""
        measured = finished(self.needs, self.out).outcome(self.space)
        told = measured.told(self.seed)
        began = time.perf_counter()
        if self.row not in LEARNERS:
            order = asked_by(self._order(measured), told.tolist())
            tell()
            return Asked(order, 0, time.perf_counter() - began)
        answers = Answers(dict(zip(measured.keys, told.tolist(), strict=True)), measured.names)
        with tempfile.TemporaryDirectory() as folder:
            trainer = self._trainer(Path(folder), measured, answers)
            for _ in trainer.updates():
                tell()
        places = {key: place for place, key in enumerate(measured.keys)}
        order = [places[key] for key in answers.asked]
        return Asked(order, trainer.real_steps, time.perf_counter() - began)

    def _order(self, measured: MeasuredSpace) -> Order:
        graph, library = _C.parse_graph(measured.first), measured.library()
        graphs = [_C.replay(graph, library, steps) for steps in measured.steps]
        space = Space(graphs, measured.steps, measured.next)
        given = space, cost_of(typical_prices(self.space.executor)), np.random.default_rng(self.seed)
        if self.forecast is None:
            return ORDERS[self.row](*given)
        found = finished([self.forecast], self.out).outcome(self.forecast)
        return by_belief(*given, before=found.shares[self.forecast.spaces.index(self.space)])

    def _trainer(self, folder: Path, measured: MeasuredSpace, answers: Answers) -> RealTrainer | DreamTrainer:
        own = typical_prices(self.space.executor)
        return trainer_of(
            self.config, folder, prices=own, graph=_C.parse_graph(measured.first), answers=answers
        )

    def read(self, kept: Mapping[str, Any]) -> Asked:
        """See `Run`."""
        return Asked(**kept)
