"""The components of each row as a picture, what it costs to compose them, and what PyG costs in training."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrlopt.agent.checkpoint import new_controller
from torchrlopt.agent.rollout import Rollout
from torchrlopt.substitutions import load_library
from training.collectors.collector import Collector
from training.components.component import Space, said
from training.components.picture import draw
from training.components.rows import composition
from training.config import ROWS, Config
from training.episodes.candidate_task import CandidateTask, controller_config, state_of
from training.episodes.play import Key
from training.experiments.experiment import Experiment, Results, table, write_csv
from training.experiments.runs import Run, Scale, Workplace
from training.learning import distil
from training.real_trainer import new_networks

UPDATES = 20  # with either form of the blocks, in turns
BUILDS = 10  # of each component
DIFFERENCE = "largest difference of a weight"


@dataclasses.dataclass(frozen=True)
class Costs:
    """Milliseconds of CPU time; under `DIFFERENCE` a difference.

    Attributes:
        values: by what took them, one of each time.
    """

    values: dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class BuildRun(Run[Costs]):
    """How long it takes to compose a row, and to build each of its components.

    Attributes:
        row: a name in `ROWS`.
        repeats: of the measurement; the first, in which modules are imported, does not count.
    """

    row: str
    repeats: int

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"build-{self.row}-{self.repeats}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        return load_library().hash

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    def make(self, tell: Callable[[], None]) -> Costs:
        """See `Run`."""
        found: dict[str, list[float]] = {}
        config = Config.of_row(self.row)
        for repeat in range(self.repeats + 1):
            parts, passed = _timed(lambda: composition(config))
            times = {"fitting the wires": _timed(parts.__post_init__)[1], "all specs": passed}
            times |= {spec.name: _timed(spec.build)[1] for spec in parts.specs}
            for name, value in times.items():
                found.setdefault(name, []).extend([value] if repeat else [])
        tell()
        return Costs(found)

    def read(self, kept: Mapping[str, Any]) -> Costs:
        """See `Run`."""
        return Costs(**kept)


@dataclasses.dataclass(frozen=True)
class PygRun(Run[Costs]):
    """How long an update takes with PyG's blocks and with our own, and how far what they learn differs.

    Attributes:
        updates: of each.
        groups: graphs that are learnt from.
    """

    updates: int
    groups: int

    @property
    def name(self) -> str:
        """See `Run`."""
        return f"pyg-{self.updates}-{self.groups}"

    @property
    def beside(self) -> str:
        """See `Run`."""
        return load_library().hash

    @property
    def num_steps(self) -> int:
        """See `Run`."""
        return self.updates

    @property
    def is_measurement(self) -> bool:
        """See `Run`."""
        return True

    def make(self, tell: Callable[[], None]) -> Costs:
        """See `Run`."""
        config = Config.of_row(
            "mf", encoder="graph_network", rollouts=4, max_steps=10, epochs=1, groups=self.groups
        )
        plain = new_controller(load_library(), controller_config(config), config.seed)
        forms = {"PyG": new_networks(config), "plain torch": plain}
        learners = {name: (each, torch.optim.Adam(each.parameters())) for name, each in forms.items()}
        rollouts = _collected(forms["PyG"], config)
        times: dict[str, list[float]] = {}
        for update in range(self.updates + 1):
            order = {name: torch.Generator().manual_seed(update) for name in forms}
            for name, learner in learners.items():
                # Imitation of the best episodes, which can be learnt from many times.
                passed = _timed(lambda: distil.update(*learner, rollouts, config, order[name]))[1]  # noqa: B023
                times.setdefault(name, []).extend([passed] if update else [])
            if update:
                tell()
        pairs = zip(*(form.parameters() for form in forms.values()), strict=True)
        differences = [float((one - other).abs().max().detach()) for one, other in pairs]
        return Costs({**times, DIFFERENCE: [max(differences)]})

    def read(self, kept: Mapping[str, Any]) -> Costs:
        """See `Run`."""
        return Costs(**kept)


def _collected(controller: Any, config: Config) -> list[Rollout]:
    with Collector(CandidateTask(config), "in_process") as collector:
        keys = [Key(config.seed, 0, group) for group in range(config.groups)]
        return [each for each in collector.collect(state_of(controller), keys) if each is not None]


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a function gives, and the milliseconds of CPU time that it took."""
    begin = time.process_time()
    found = function()
    return found, 1000 * (time.process_time() - begin)


def settings(scale: Scale, place: Workplace) -> tuple[dict[str, BuildRun], PygRun]:
    """The runs; seeds change nothing in them."""
    del place
    builds = max(2, round(scale.share * BUILDS))
    updates = max(2, round(scale.share * UPDATES))
    return {row: BuildRun(row, builds) for row in ROWS}, PygRun(updates, 2 if updates == 2 else 8)


def report(results: Results, folder: Path) -> list[str]:
    """See `Experiment`."""
    builds, pyg = settings(results.scale, results.place)
    found: dict[str, Mapping[str, Sequence[float]]] = {
        row: results.finished.outcome(run).values for row, run in builds.items()
    }
    learning = dict(results.finished.outcome(pyg).values)
    (difference,) = learning.pop(DIFFERENCE)
    parts = {row: composition(Config.of_row(row)) for row in ROWS}
    draw(list(parts.values()), folder / "components.png")
    rows = [
        (row, what, statistics.median(values)) for row, each in found.items() for what, values in each.items()
    ]
    rows += [
        ("graph network encoder", f"an update, {name}", statistics.median(values))
        for name, values in learning.items()
    ]
    write_csv(folder / "components.csv", ("row", "what", "milliseconds"), rows)
    spaces = [(spec.name, _listed(spec.takes), _listed(spec.gives)) for spec in parts["wm"].specs]
    wiring = {row: statistics.median(each["fitting the wires"]) for row, each in found.items()}
    cost = statistics.median(learning["PyG"]) / statistics.median(learning["plain torch"]) - 1
    return [
        "![components and what passes between them](components.png)",
        "",
        "Each component is built from its spec alone (`training/components/`), and refuses what is of "
        "another shape. Of the row `wm`; what has no shape here has several arrays, see "
        "`training/components/specs.py`:",
        "",
        *table(("component", "takes", "gives"), spaces),
        "",
        "CPU time of building, in milliseconds, medians:",
        "",
        *table(("row", "what", "ms"), rows),
        "",
        f"- What composing adds to building the parts is to see that the wires fit: at most "
        f"{max(wiring.values()):.2g} ms. The specs of the rows with a world model embed all substitutions.",
        f"- PyG's blocks cost {cost:+.1%} of the time of an update with the same blocks in plain torch. The "
        f"largest difference of a weight after {pyg.updates + 1} updates is {difference:.2g}.",
    ]


LONG = ("observation", "legal", "imagined", "episodes", "replay")  # their spaces would fill the table


def _listed(values: Mapping[str, Space]) -> str:
    return "; ".join(name if name in LONG else f"{name} {said(space)}" for name, space in values.items())


COMPONENTS = Experiment(
    "Components, and how the rows are composed of them",
    "After the slides on RLgraph (components, build overhead)",
    lambda scale, place: [*settings(scale, place)[0].values(), settings(scale, place)[1]],
    report,
    "",
)
