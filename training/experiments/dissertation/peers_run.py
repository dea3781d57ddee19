"""A run that times a graph of the dissertation in other compilers, each in a process of its own, in turns."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from baselines.peers.case import OURS, Case
from baselines.peers.measured import Settings, measure_model
from baselines.peers.registry import installed_peers
from baselines.peers.tvm import TRIALS
from torchrlopt.agent import catalogue
from torchrlopt.options import Options
from torchrlopt.substitutions import load_library
from training.device.prices import typical_prices
from training.experiments.graphs_of_paper import GRAPHS
from training.experiments.runs import MEASURED, Run, versions

BASE = "eager"
#: Of the paper's peers, and others of today, those that have a CPU, beside what we give it to.
WANTED = (BASE, "tensorflow", "tensorflow_plain", "tvm", "onnxruntime", OURS)
TITLES = {
    BASE: "PyTorch",
    "tensorflow": "TensorFlow, Grappler",
    "tensorflow_plain": "TensorFlow without Grappler",
    "tvm": "TVM, not tuned",
    "onnxruntime": "ONNX Runtime",
    OURS: "ours, in eager PyTorch",
}
_TIMEOUT_S = 1_200.0


@dataclasses.dataclass(frozen=True)
class PeerTime:
    """What came of one peer.

    Attributes:
        peer: a name in `WANTED`.
        median_ms: of a call; None where there is a reason.
        ratio: how many times as fast as PyTorch, with its quartiles over the rounds.
        reason: why it does not count; else empty.
    """

    peer: str
    median_ms: float | None
    ratio: tuple[float, float, float] | None
    reason: str


@dataclasses.dataclass(frozen=True)
class PeersOutcome:
    """All peers of a graph, in order."""

    times: list[PeerTime]


@dataclasses.dataclass(frozen=True)
class PeersRun(Run[PeersOutcome]):
    """See `Run`.

    Attributes:
        graph: of `graphs_of_paper.GRAPHS`.
        peers: that take turns, in order.
        rounds: of each.
    """

    graph: str
    peers: tuple[str, ...]
    rounds: int

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"peers-{self.graph}-{self.rounds}x{len(self.peers)}-{load_library().hash[:8]}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        agent = catalogue.digest(Options(searcher="agent"))
        peers = versions(*MEASURED, "tensorflow-cpu", "tensorflow", "apache-tvm")
        return f"{peers} {agent} {typical_prices().to_json()} {os.environ.get(TRIALS, '')}"

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    def make(self, tell: Callable[[], None]) -> PeersOutcome:
        """See `Run`."""
        model = GRAPHS[self.graph].name
        own = {OURS: ("eager", "frozen", "agent")}
        cases = [Case(model, peer, 1, "float32", 1, *own.get(peer, ())) for peer in self.peers]
        settings = Settings(rounds=self.rounds, timeout_s=_TIMEOUT_S)
        with tempfile.TemporaryDirectory() as caches:
            rows = measure_model(cases, settings, Path(caches), lambda _: None)
        tell()
        found = []
        for row in rows:
            known = row.ratios and (row.ratios[1], row.ratios[0], row.ratios[2])
            found.append(PeerTime(row.case.peer, None if row.reason else row.median_ms, known, row.reason))
        return PeersOutcome(found)

    def read(self, kept: Mapping[str, Any]) -> PeersOutcome:
        """See `Run`."""
        given = [{**each, "ratio": each["ratio"] and tuple(each["ratio"])} for each in kept["times"]]
        return PeersOutcome([PeerTime(**each) for each in given])


def peers_here() -> tuple[str, ...]:
    """Those of `WANTED` that are installed."""
    return tuple(peer for peer in WANTED if peer in installed_peers())
