"""A training run of any row: its folder, from which it can be resumed at any time, and its log.

A folder holds `config.json`, `state.pt` (weights, optimisers, counters), `log.jsonl`, TensorBoard events and,
in the end, `agent.safetensors` or, of rows that are no agents, `networks.safetensors`, with its manifest.
"""

from __future__ import annotations

import abc
import hashlib
import io
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from torchrlopt import _C
from torchrlopt.errors import OptionsError
from torchrlopt.storage.files import write_whole
from torchrlopt.substitutions import load_library
from training import checkpoints
from training.checkpoints import SHIPPED_ROW, Controller, stripped
from training.collectors.collector import Collector
from training.config import Config
from training.device.prices import Prices
from training.graphs.curriculum import manifest, structure_hash
from training.graphs.one_graph import one_graph
from training.progress import progress_bar
from training.rollout import Rollout

logger = logging.getLogger("torchrlopt")

STATE = "state.pt"
AGENT = "agent.safetensors"
NETWORKS = "networks.safetensors"  # of the rows that are no agents
LOG = "log.jsonl"  # one line per update, the same values as in TensorBoard
SAVE_SECONDS = 60.0


class Trainer(abc.ABC):
    """The common part of all rows' runs: updates, saving, resuming, exporting.

    A subclass creates its networks and its `collector` in `build`.

    Args:
        config: all arguments; `row` is one of `rows`.
        folder: of the run; created if missing.
        resume: continue the run in the folder; if false, the folder must hold no run.
        prices: of the device; the default device if None.
        graph: to play on; if None, the one named in `config`, or graphs of the curriculum.

    Raises:
        OptionsError: this class does not train the row of `config`, there is no such graph, or the run in the
            folder has other arguments.
        FileExistsError: the folder holds a run and `resume` is not set.
    """

    #: The rows that this class trains.
    rows: ClassVar[tuple[str, ...]]
    controller: Controller
    collector: Collector

    def __init__(
        self,
        config: Config,
        folder: Path,
        *,
        resume: bool = False,
        prices: Prices | None = None,
        graph: _C.Graph | None = None,
    ) -> None:
        if config.row not in self.rows:
            raise OptionsError(
                f"{type(self).__name__} does not train this row",
                expected=" or ".join(self.rows),
                got=config.row,
            )
        torch.set_num_threads(1)
        self.config = config
        self.folder = folder
        self.prices = prices or Prices()
        self.library: _C.Library = load_library()
        self.graph = one_graph(config.graph) if graph is None and config.graph else graph
        self.update = self.real_steps = self.imagined_steps = 0
        self.seconds = self.cpu_seconds = 0.0
        self.build()
        self._open(resume)

    @abc.abstractmethod
    def build(self) -> None:
        """Create the networks, their optimisers and the collector."""

    @property
    def graph_text(self) -> str | None:
        """The graph to play on as text, for tasks; None for the curriculum."""
        return None if self.graph is None else self.graph.text()

    def collection_seconds(self) -> dict[str, float]:
        """Times of the last collection, for the log; the data do not depend on them."""
        collector = self.collector
        return {
            "broadcast_seconds": collector.broadcast_seconds,
            "collect_seconds": collector.collect_seconds,
        }

    @abc.abstractmethod
    def step(self) -> dict[str, float]:
        """One update; returns losses and scores by name."""

    @abc.abstractmethod
    def parts(self) -> dict[str, Any]:
        """Everything in a saved run, by name; each has `state_dict` and `load_state_dict`."""

    def begin(self) -> dict[str, float]:
        """Work done once, before the first update; returns losses by name."""
        return {}

    def _open(self, resume: bool) -> None:
        """Create the folder and write the arguments into it, or resume the run that it holds.

        Raises:
            FileExistsError: it holds a run and `resume` is not set.
            OptionsError: the run there has other arguments or prices, or another graph.
        """
        if claim(self.folder, resume):
            state: dict[str, Any] = torch.load(self.folder / STATE, weights_only=True)
            self.config.check_same_run(Config.from_json(state["config"]))
            self._check_same_rewards(state["rewards"])
            for name, part in self.parts().items():
                part.load_state_dict(state["parts"][name])
            self.update, self.real_steps, self.imagined_steps = state["counters"]
            self.seconds = float(state["seconds"])
            self.cpu_seconds = float(state["cpu_seconds"])
        else:
            (self.folder / LOG).unlink(missing_ok=True)  # of a run that was killed before its first save
        write_whole(self.folder / "config.json", self.config.to_json().encode())

    @property
    def _rewards(self) -> dict[str, str]:
        """What rewards depend on in addition to the arguments."""
        texts = {"prices": self.prices.to_json(), "graph": self.graph_text or ""}
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}

    def _check_same_rewards(self, stored: Mapping[str, str]) -> None:
        """Refuse to resume with other rewards."""
        changed = [name for name, digest in self._rewards.items() if stored[name] != digest]
        if changed:
            raise OptionsError(
                f"the run was begun with another {' and another '.join(changed)}",
                where=str(self.folder),
                todo="begin a new one",
            )

    def save(self) -> None:
        """Save everything that resuming needs, atomically."""
        memory = io.BytesIO()
        state = {
            "parts": {name: part.state_dict() for name, part in self.parts().items()},
            "counters": [self.update, self.real_steps, self.imagined_steps],
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "config": self.config.to_json(),
            "rewards": self._rewards,
        }
        torch.save(state, memory)
        write_whole(self.folder / STATE, memory.getvalue())

    def provenance(self) -> dict[str, Any]:
        """Provenance stored in a checkpoint."""
        seen: dict[str, object] = manifest(self.config.seed)
        if self.graph is not None:
            seen = {"graph": self.config.graph, "structure": structure_hash(self.graph)}
        return {
            "row": self.config.row,
            "manifest": seen,
            "config": self.config.to_json(),
            "updates": self.update,
            "real_steps": self.real_steps,
            "imagined_steps": self.imagined_steps,
            "hours": round(self.seconds / 3600, 4),
            "prices": dict(self.prices.rates),
            "measured_nodes": len(self.prices.measured),
        }

    def export(
        self,
        scores: dict[str, Any] | None = None,
        path: Path | None = None,
    ) -> Path:
        """Write the networks: as an agent if they can be one, else as a checkpoint that training reads.

        Args:
            scores: their evaluation results.
            path: output path; in the folder of the run if None.

        Returns:
            The output path.
        """
        is_agent = self.config.row == SHIPPED_ROW and self.config.encoder == "graph_network"
        network = stripped(self.controller) if is_agent else self.controller
        path = path or self.folder / (AGENT if is_agent else NETWORKS)
        told = {**self.provenance(), "scores": scores or {}}
        checkpoints.save(path, network, self.library, told)
        return path

    def run(self) -> None:
        """Train like `updates`, with a progress bar and TensorBoard."""
        # Imported lazily: it takes a second, and most tests do not need it.
        from torch.utils.tensorboard import SummaryWriter

        begin = time.perf_counter()
        with SummaryWriter(str(self.folder)) as writer, progress_bar() as progress:
            bar = progress.add_task(f"{self.config.row}: preparing", total=1.0)
            for logs in self.updates():
                for name, value in logs.items():
                    writer.add_scalar(name, value, self.update)
                gain = logs.get("mean_return", 0.0)
                text = f"{self.config.row} update {self.update}, gain {gain:.4f}"
                progress.update(bar, completed=self._share(time.perf_counter() - begin), description=text)

    def updates(self) -> Iterator[dict[str, float]]:
        """Train until the updates or minutes are used up; yields the log of each update. Saves periodically.

        The workers are dismissed at the end.
        """
        begin = last_save = time.perf_counter()
        with self.collector:
            if self.update == 0:
                cpu_begin = time.process_time()
                self.begin()
                self.seconds += time.perf_counter() - begin
                self.cpu_seconds += time.process_time() - cpu_begin
            is_done = self.update >= self.config.updates
            if is_done:
                self.save()
            while not is_done:
                cpu_begin = time.process_time()
                logs = self.step()
                self.cpu_seconds += time.process_time() - cpu_begin
                logs |= {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
                log(self.folder, self.update, logs)
                now = time.perf_counter()
                is_done = self._share(now - begin) >= 1.0
                if is_done or now - last_save > SAVE_SECONDS:
                    self.save()
                    last_save = now
                yield logs

    def _share(self, seconds: float) -> float:
        """Progress in updates or in minutes, whichever is larger; at most 1."""
        share = self.update / self.config.updates
        if self.config.minutes:
            share = max(share, seconds / 60 / self.config.minutes)
        return min(1.0, share)


def claim(folder: Path, resume: bool) -> bool:
    """Create the folder of a run; returns whether it already holds one.

    Raises:
        FileExistsError: it does, and `resume` is not set.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holds_run = (folder / STATE).exists()
    if holds_run and not resume:
        raise FileExistsError(f"{folder} holds a run; continue it with --resume")
    return holds_run


def log(folder: Path, update: int, logs: dict[str, float]) -> None:
    """Append the scores of an update; a resumed run may repeat an update, and the last line counts."""
    with (folder / LOG).open("a+b") as file:
        # A run killed while writing leaves half a line: end it.
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        is_torn = file.read(1) not in (b"", b"\n")
        line = json.dumps({"update": update, **logs}) + "\n"
        file.write(("\n" * is_torn + line).encode())


def read_log(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(update, value) by name, in order."""
    rows: dict[int, dict[str, float]] = {}
    path = folder / LOG
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # half a line of a killed run; after resuming, that update was repeated
            continue
        rows[row.pop("update")] = row
    series: dict[str, list[tuple[int, float]]] = {}
    for update in sorted(rows):
        for name, value in rows[update].items():
            series.setdefault(name, []).append((update, value))
    return series


def summary(rollouts: list[Rollout]) -> dict[str, float]:
    """Scores of the episodes of an update."""
    if not rollouts:
        return {}
    returns = torch.cat([rollout.returns for rollout in rollouts])
    lengths = torch.cat([rollout.active.sum(0) for rollout in rollouts])
    best = torch.stack([rollout.returns.max() for rollout in rollouts])
    return {
        "mean_return": float(returns.mean()),
        "best_return": float(best.mean()),
        "mean_length": float(lengths.float().mean()),
    }
