"""The plot of a comparison of peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

from matplotlib.figure import Figure

from baselines.peers.case import PEERS
from baselines.shared.comparison import ratios_by_peer
from baselines.shared.rounds import Row
from baselines.shared.terminal import machine


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Draws each peer's speed-up over eager on each model, with its quartiles, and the geometric means.

    Args:
        rows: Rows grouped by model, of one batch, dtype and number of threads.
        path: Where to write; the ending chooses the format.
    """
    by_peer = ratios_by_peer(rows)
    peers = [peer for peer in by_peer if peer != PEERS[0]]
    labels = [*dict.fromkeys(row.case.model for row in rows), "geomean"]
    height = 0.8 / max(1, len(peers))
    figure = Figure(figsize=(8, 1.6 + 0.42 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    for index, peer in enumerate(peers):
        offset = (index - (len(peers) - 1) / 2) * height
        good = [row for row in rows if row.case.label == peer and row.ratio is not None and not row.reason]
        positions = [labels.index(row.case.model) + offset for row in good] + [len(labels) - 1 + offset]
        ratios = [row.ratio or 0.0 for row in good] + [geometric_mean(by_peer[peer])]
        below = [(row.ratio or 0.0) - (row.ratio_q1 or 0.0) for row in good] + [0.0]
        above = [(row.ratio_q3 or 0.0) - (row.ratio or 0.0) for row in good] + [0.0]
        # Bars begin at 1: to the right is faster than eager, to the left slower.
        lengths = [ratio - 1 for ratio in ratios]
        axes.barh(positions, lengths, height, 1, xerr=[below, above], label=peer, error_kw={"linewidth": 0.8})
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_xlabel(f"speed-up over {PEERS[0]}")
    case = rows[0].case
    axes.set_title(f"batch {case.batch}, {case.dtype}, {case.threads} threads\n{machine()}", fontsize=8)
    if peers:
        figure.legend(loc="outside lower center", ncols=len(peers), fontsize=8)
    figure.savefig(path, dpi=150)
