"""The part of figure 4.1 about other compilers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from baselines.peers.case import OURS as OUR_PEER
from baselines.peers.case import Case
from baselines.peers.measured import Settings, measure_model
from baselines.peers.registry import installed_peers
from torchrlopt.agent import catalogue
from torchrlopt.options import Options
from training.papers.experiment import Runs
from training.papers.graphs import (
    GRAPHS,
    graphs_at,
)
from training.papers.runner import (
    MEASURED,
    Result,
    Scale,
    Work,
    kind,
    measured,
    versions,
)

#: Compilers with a CPU backend, from the paper and of today, next to ours. The committed results have
#: TensorFlow and TVM as well, which are not measured any more.
PEERS = {
    "eager": "PyTorch",
    "tensorflow": "TensorFlow, Grappler",
    "tensorflow_plain": "TensorFlow without Grappler",
    "tvm": "TVM, not tuned",
    "onnxruntime": "ONNX Runtime",
    OUR_PEER: "ours, in eager PyTorch",
}


def _of_peers(**given: Any) -> str:
    agent = catalogue.digest(Options(searcher="agent"))
    return f"{measured()} {versions(*MEASURED)} {agent}"


@kind(_of_peers, measures=True)
def compilers(work: Work, graph: str, peers: Sequence[str], rounds: int) -> Result:
    """Run a graph in other compilers, alternating, each in a separate process."""
    own = {OUR_PEER: ("eager", "frozen", "agent")}
    cases = [Case(graph, peer, 1, "float32", 1, *own.get(peer, ())) for peer in peers]
    settings = Settings(rounds=rounds, timeout_s=1_200.0)
    with tempfile.TemporaryDirectory() as caches:
        rows = measure_model(cases, settings, Path(caches), lambda _: None)
    times = []
    for row in rows:
        low, median, high = row.ratios or (None, None, None)
        times.append((row.case.peer, None if row.reason else row.median_ms, median, low, high, row.reason))
    return {"times": times}


def peer_runs(scale: Scale) -> Runs:
    """Installed peers, by graph and "peers"."""
    rounds = max(1, round(7 * min(1.0, 4 * scale.share)))
    here = tuple(peer for peer in PEERS if peer in installed_peers())
    return {
        (name, "peers"): compilers(graph=name, peers=here, rounds=rounds) for name in graphs_at(scale.share)
    }


def peers_shown(times: pd.DataFrame) -> dict[str, Any]:
    """A table of the peers, and the facts stated about them."""

    def text(row: Any) -> str:
        if row.reason or np.isnan(row.ratio):
            return "failed"
        if row.peer == "eager":
            return f"{row.median_ms:.3g} ms"
        digits = ".2g" if row.ratio < 0.1 else ".2f"
        return f"{row.ratio:{digits}} ({row.ratio_q1:{digits}} to {row.ratio_q3:{digits}})"

    own = times.assign(text=[text(row) for row in times.itertuples()], graph=times["graph"].map(GRAPHS))
    here = [peer for peer in PEERS if peer in set(times["peer"])]
    table = own.pivot(index="graph", columns="peer", values="text").reindex(own["graph"].unique())[here]
    return {
        "peers": table.rename(columns=PEERS).reset_index(),
        "failed": own[own["reason"] != ""][["graph", "peer", "reason"]],
    }
