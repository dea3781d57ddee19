"""The part of figure 4.1 that is of other compilers."""

from __future__ import annotations

from pathlib import Path

from training.experiments.dissertation.peers_run import BASE, TITLES, WANTED, PeersRun, PeerTime, peers_here
from training.experiments.experiment import Cell, Results, table, write_csv
from training.experiments.graphs_of_paper import GRAPHS, graphs_at
from training.experiments.runs import Scale

_ROUNDS = 7


def peers_of(scale: Scale) -> dict[str, PeersRun]:
    """By graph, those that are installed; in full each has 7 rounds."""
    rounds = max(1, round(_ROUNDS * min(1.0, 4 * scale.share)))
    return {name: PeersRun(name, peers_here(), rounds) for name in graphs_at(scale.share)}


def report_peers(results: Results, folder: Path) -> list[str]:
    """Writes their CSV into a folder; lines of a table, and what is to be known of it."""
    found = {name: results.finished.outcome(run).times for name, run in peers_of(results.scale).items()}
    rows: list[list[Cell]] = [
        [name, each.peer, each.median_ms or "", *(each.ratio or ("", "", "")), each.reason]
        for name, times in found.items()
        for each in times
    ]
    header = ("graph", "peer", "median_ms", "ratio", "ratio_q1", "ratio_q3", "reason")
    write_csv(folder / "fig4.1_peers.csv", header, rows)
    peers = [peer for peer in WANTED if any(each.peer == peer for times in found.values() for each in times)]
    missing = [TITLES[peer] for peer in WANTED if peer not in peers]
    lines = []
    for name, times in found.items():
        cells = {each.peer: _peer_cell(each) for each in times}
        lines.append([GRAPHS[name].title, *(cells[peer] for peer in peers)])
    failed = [
        f"- {TITLES[each.peer]} on {GRAPHS[name].title}: {each.reason}"
        for name, times in found.items()
        for each in times
        if each.reason
    ]
    return [
        "### Other compilers",
        "",
        *table(("graph", *(TITLES[peer] for peer in peers)), lines),
        "",
        "Times as fast as the module as written in PyTorch, with one thread: the median of rounds in turns, "
        "each peer in a process of its own, with its quartiles; of PyTorch milliseconds. TensorFlow gets "
        "the exported graph in its own operators with channels last and constant weights.",
        "",
        *failed,
        *[f"- Not installed here: {', '.join(missing)}."] * bool(missing),
        *[
            "- TVM is made to be tuned; without that its kernels are plain loops. `TVM_TRIALS` gives the "
            "peer `tvm` of `baselines/compare.py` trials: where that was tried, on an AMD EPYC, the tuner "
            "of TVM 0.27 ended with a segmentation fault."
        ]
        * ("tvm" in peers),
        "- TensorRT needs a GPU.",
    ]


def _peer_cell(time: PeerTime) -> Cell:
    if time.ratio is None or time.median_ms is None:
        return "failed"
    if time.peer == BASE:
        return f"{time.median_ms:.3g} ms"
    median, low, high = time.ratio
    digits = ".2g" if median < 0.1 else ".2f"
    return f"{median:{digits}} ({low:{digits}} to {high:{digits}})"
