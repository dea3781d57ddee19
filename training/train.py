"""Training in real episodes: the rows MF (PPO) and PLAN (search distillation); resumable at any moment.

    python -m training.train --row plan --minutes 10 --out runs/plan

A run is a directory: `config.json`, `state.pt` (weights, optimiser, counters), TensorBoard events, and in the
end `agent.safetensors` with its manifest. What an update collects depends on (seed, update) and the weights
only, so a run that was killed and resumed goes on as if nothing had happened.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from torchrlopt import _C
from torchrlopt.agent import checkpoint
from torchrlopt.agent.rollout import Rollout
from torchrlopt.machine.cost import device_model
from torchrlopt.substitutions import load_library
from training.config import Config, meanings
from training.device.prices import Prices, prices_of
from training.episodes.collect import Collector, controller_config
from training.episodes.play import Key
from training.episodes.random_keys import torch_seed
from training.graphs.curriculum import manifest
from training.learning import distil, ppo

STATE = "state.pt"
AGENT = "agent.safetensors"
ORDER = 4  # first number of the key of the order of minibatches
SAVE_SECONDS = 60.0


class Trainer:
    """One run of the rows MF and PLAN.

    Args:
        config: all arguments.
        folder: of the run; made where it is missing.
        resume: continue what is there; without it, the folder must hold no run.
        prices: of the device, see `training.device.prices`; the default one if None.
        start: checkpoint of an agent of the same sizes to go on from; None to begin at random.

    Raises:
        FileExistsError: there is a run already.
        ValueError: the run there has other arguments, or `start` other sizes.
        AgentError: `start` cannot be loaded.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        *,
        resume: bool = False,
        prices: Prices | None = None,
        start: Path | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self.config = config
        self.folder = folder
        self.prices = prices or Prices()
        self.library: _C.Library = load_library()
        self.controller = checkpoint.new_controller(self.library, controller_config(config), config.seed)
        if start is not None:
            self._begin_at(start)
        self.optimiser = torch.optim.Adam(self.controller.parameters(), config.learning_rate)
        self.update = 0
        self.real_steps = 0
        self.seconds = 0.0
        if claim(folder, resume):
            self._load()
        checkpoint.write_whole(folder / "config.json", config.to_json().encode())

    def keys(self) -> list[Key]:
        """Of the groups of the next collection."""
        progress = min(1.0, self.update / max(1, self.config.warm_up))
        return [Key(self.config.seed, self.update, group, progress) for group in range(self.config.groups)]

    def step(self, collector: Collector) -> dict[str, float]:
        """Collect and learn once; losses and scores by name."""
        begin = time.perf_counter()
        is_ppo = self.config.row == "mf"
        rollouts = collector.collect(self.controller, self.keys(), 1.0 if is_ppo else self.config.temperature)
        middle = time.perf_counter()
        logs: dict[str, float] = {}
        if rollouts:
            order = torch.Generator().manual_seed(torch_seed(ORDER, self.config.seed, self.update))
            learn = ppo.update if is_ppo else distil.update
            self.controller.train()
            logs = learn(self.controller, self.optimiser, rollouts, self.config, order)
        self.update += 1
        self.real_steps += sum(rollout.num_steps for rollout in rollouts)
        self.seconds += time.perf_counter() - begin
        return {
            **logs,
            **summary(rollouts),
            "collect_seconds": middle - begin,
            "learn_seconds": time.perf_counter() - middle,
            "real_steps": float(self.real_steps),
        }

    def save(self) -> None:
        """Everything that `resume` needs, in one piece."""
        memory = io.BytesIO()
        state = {
            "controller": self.controller.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "update": self.update,
            "real_steps": self.real_steps,
            "seconds": self.seconds,
            "config": self.config.to_json(),
        }
        torch.save(state, memory)
        checkpoint.write_whole(self.folder / STATE, memory.getvalue())

    def _begin_at(self, start: Path) -> None:
        given = checkpoint.load(start, self.library).controller
        if given.config != self.controller.config:
            raise ValueError(f"{start} holds an agent of other sizes: {given.config}")
        self.controller.load_state_dict(given.state_dict())

    def _load(self) -> None:
        state: dict[str, Any] = torch.load(self.folder / STATE, weights_only=True)
        self.config.check_same_run(Config.from_json(state["config"]))
        self.controller.load_state_dict(state["controller"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.update, self.real_steps = int(state["update"]), int(state["real_steps"])
        self.seconds = float(state["seconds"])

    def export(
        self,
        scores: dict[str, Any] | None = None,
        path: Path | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Path:
        """Write the agent, into the folder of the run if no path is given; where it is."""
        path = path or self.folder / AGENT
        metadata = {**(extra or {}), **provenance(self, scores)}
        checkpoint.save(path, self.controller, self.library, metadata)
        return path

    def run(self) -> None:
        """Train until updates or minutes are used up, with a bar and TensorBoard; save now and then."""
        # Imported here: it takes a second, and tests of the rest do not need it.
        from torch.utils.tensorboard import SummaryWriter

        begin = time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with (
            Collector(self.config, self.prices) as collector,
            SummaryWriter(str(self.folder)) as writer,
            Progress(*columns) as progress,
        ):
            bar = progress.add_task(self.config.row, total=1.0)
            for logs in updates(self, lambda: self.step(collector), self.save, begin, progress, bar):
                for name, value in logs.items():
                    writer.add_scalar(name, value, self.update)
                log(self.folder, self.update, logs)


def claim(folder: Path, resume: bool) -> bool:
    """Make the folder of a run; whether it holds one already.

    Raises:
        FileExistsError: it does, and it is not to be continued.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holds_run = (folder / STATE).exists()
    if holds_run and not resume:
        raise FileExistsError(f"{folder} holds a run; continue it with --resume")
    return holds_run


class Run(Protocol):
    """What `updates` and `provenance` need of one."""

    config: Config
    update: int
    real_steps: int
    seconds: float
    prices: Prices


def provenance(trainer: Run, scores: dict[str, Any] | None) -> dict[str, Any]:
    """What a checkpoint says of its making."""
    return {
        "row": trainer.config.row,
        "manifest": manifest(trainer.config.seed),
        "config": trainer.config.to_json(),
        "updates": trainer.update,
        "real_steps": trainer.real_steps,
        "hours": round(trainer.seconds / 3600, 4),
        "prices": dict(trainer.prices.rates),
        "measured_nodes": len(trainer.prices.measured),
        "scores": scores or {},
    }


def updates(
    trainer: Run,
    step: Callable[[], dict[str, float]],
    save: Callable[[], object],
    begin: float,
    progress: Progress,
    bar: TaskID,
) -> Iterator[dict[str, float]]:
    """The logs of steps until updates or minutes since `begin` are used up; saves now and then."""
    last_save = begin
    while trainer.update < trainer.config.updates:
        logs = step()
        yield logs
        now = time.perf_counter()
        if now - last_save > SAVE_SECONDS:
            save()
            last_save = now
        minutes = (now - begin) / 60
        share = trainer.update / trainer.config.updates
        if trainer.config.minutes:
            share = max(share, minutes / trainer.config.minutes)
        text = f"{trainer.config.row} update {trainer.update}, gain {logs.get('mean_return', 0.0):.4f}"
        progress.update(bar, completed=min(1.0, share), description=text)
        if trainer.config.minutes and minutes >= trainer.config.minutes:
            break
    save()


LOG = "log.jsonl"  # one line for each update, what TensorBoard shows


def log(folder: Path, update: int, logs: dict[str, float]) -> None:
    """Append the scores of an update; a resumed run may write one again, and the last one counts."""
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"update": update, **logs}) + "\n")


def read_log(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(update, value) by name, in order."""
    rows: dict[int, dict[str, float]] = {}
    path = folder / LOG
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        row = json.loads(line)
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One option for each argument of `Config`."""
    told = meanings()
    for field in dataclasses.fields(Config):
        name = "--" + field.name.replace("_", "-")
        text = f"{told[field.name]} [%(default)s]"
        parser.add_argument(name, type=type(field.default), default=field.default, help=text)


def config_of(given: argparse.Namespace) -> Config:
    """The configuration of parsed options."""
    return Config(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Config)})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--resume", action="store_true", help="continue the run in it")
    add_arguments(parser)
    given = parser.parse_args()
    prices = prices_of(device_model("eager", "cpu"))  # before the trainer sets the number of threads
    trainer = Trainer(config_of(given), given.out, resume=given.resume, prices=prices)
    trainer.run()
    print(trainer.export())


if __name__ == "__main__":
    main()
