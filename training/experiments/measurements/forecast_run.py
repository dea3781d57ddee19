"""A run that fits latency networks to graphs measured before, and foretells the times of spaces' graphs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrlopt import _C
from training.device.prices import cost_of, typical_prices
from training.experiments.measurements.space_run import SpaceRun
from training.experiments.runs import Run, finished
from training.latency import fit as fitting
from training.latency.dataset import groups, read
from training.latency.fit import Measured
from training.latency.network import PricedGraphs

DATA = Path(fitting.__file__).parent / "measured"
_TOGETHER = 50  # graphs


@dataclasses.dataclass(frozen=True)
class Forecasts:
    """What a run leaves.

    Attributes:
        shares: of each space the foretold time of each graph, as a share of the first one's.
    """

    shares: list[list[float]]


@dataclasses.dataclass(frozen=True)
class ForecastRun(Run[Forecasts]):
    """See `Run`.

    Attributes:
        spaces: whose graphs are foretold.
        members: networks, whose mean is taken.
        epochs: passes over the data.
        bases: most graphs of the curriculum, with their variants, that are learnt from on each executor.
        out: folder of the experiments.
    """

    spaces: tuple[SpaceRun, ...]
    members: int
    epochs: int
    bases: int
    out: Path = dataclasses.field(compare=False)

    @property
    def name(self) -> str:
        """See `Run`."""
        code = hashlib.sha256(" ".join(space.name for space in self.spaces).encode()).hexdigest()[:8]
        return f"forecast-{self.members}x{self.epochs}-{self.bases}-{code}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        files = sorted({DATA / f"{space.executor}.jsonl.xz" for space in self.spaces})
        return " ".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)

    @property
    def needs(self) -> Sequence[Run[Any]]:
        """See `Run`."""
        return self.spaces

    def make(self, tell: Callable[[], None]) -> Forecasts:
        """See `Run`."""
        executors = sorted({space.executor for space in self.spaces})
        data: list[Measured] = []
        for executor in executors:
            together = groups(read([DATA / f"{executor}.jsonl.xz"])).values()
            usable = [own for own in together if own[0].base.startswith("train ") and len(own) > 1]
            data += map(Measured.of, usable[: self.bases])
        networks = fitting.fit(data, executors, self.members, self.epochs, seed=0)
        found = finished(self.spaces, self.out)
        shares = []
        for space in self.spaces:
            measured = found.outcome(space)
            first, library, cost = (
                _C.parse_graph(measured.first),
                measured.library(),
                cost_of(typical_prices(space.executor)),
            )
            logs = []
            for begin in range(0, len(measured.steps), _TOGETHER):
                steps = measured.steps[begin : begin + _TOGETHER]
                graphs = [PricedGraphs.of(_C.replay(first, library, each), cost) for each in steps]
                unknown = torch.zeros(len(graphs))
                asked = Measured("", space.executor, PricedGraphs.joined(graphs), unknown, unknown)
                logs += fitting.forecast(networks, asked)[0].tolist()
            shares.append(torch.tensor([each - logs[0] for each in logs]).exp().tolist())
        tell()
        return Forecasts(shares)

    def read(self, kept: Mapping[str, Any]) -> Forecasts:
        """See `Run`."""
        return Forecasts(**kept)
