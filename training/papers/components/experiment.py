"""The components of each row as a picture, the cost of composing them, and the cost of PyG in training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torchrlopt.substitutions import load_library
from training.collectors.collector import Collector
from training.config import ROWS, Config
from training.episodes.candidate_task import CandidateTask, controller_config, state_of
from training.episodes.play import Key
from training.learning import distil
from training.networks.candidate_controller import new_controller
from training.papers.components.component import said
from training.papers.components.picture import draw
from training.papers.components.rows import composition
from training.papers.experiment import Data, Experiment, Results, Runs, Shown, frame
from training.papers.runner import Result, Scale, Work, Workplace, kind, priced
from training.real_trainer import new_networks

_LONG = ("observation", "legal", "imagined", "episodes", "replay")  # their spaces are too long for the table


@kind(lambda **given: priced(), measures=True)
def build_costs(work: Work, row: str, repeats: int) -> Result:
    """Milliseconds of CPU time for composing a row and for building each of its components."""
    found: dict[str, list[float]] = {}
    config = Config.of_row(row)
    for repeat in range(repeats + 1):
        parts, passed = _timed(lambda: composition(config))
        times = {"fitting the wires": _timed(parts.__post_init__)[1], "all specs": passed}
        times |= {spec.name: _timed(spec.build)[1] for spec in parts.specs}
        for name, value in times.items():  # the first repeat includes module imports
            found.setdefault(name, []).extend([value] if repeat else [])
    return {"ms": found}


@kind(lambda **given: priced(), measures=True)
def pyg_costs(work: Work, updates: int, groups: int) -> Result:
    """Milliseconds per update with PyG's blocks and with our own, and the difference in what they learn."""
    config = Config.of_row("mf", encoder="graph_network", rollouts=4, max_steps=10, epochs=1, groups=groups)
    plain = new_controller(load_library(), controller_config(config), config.seed)
    forms = {"PyG": new_networks(config), "plain torch": plain}
    learners = {name: (each, torch.optim.Adam(each.parameters())) for name, each in forms.items()}
    with Collector(CandidateTask(config), "in_process") as collector:
        keys = [Key(config.seed, 0, group) for group in range(groups)]
        collected = collector.collect(state_of(forms["PyG"]), keys)
        rollouts = [each for each in collected if each is not None]
    times: dict[str, list[float]] = {}
    for update in range(updates + 1):
        for name, learner in learners.items():
            order = torch.Generator().manual_seed(update)
            # Imitation of the best episodes, because it can be repeated on the same data.
            passed = _timed(lambda: distil.update(*learner, rollouts, config, order))[1]  # noqa: B023
            times.setdefault(name, []).extend([passed] if update else [])
    pairs = zip(*(form.parameters() for form in forms.values()), strict=True)
    differences = [float((one - other).abs().max().detach()) for one, other in pairs]
    return {"ms": times, "difference": max(differences), "updates": updates + 1}


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function; return its result and the milliseconds of CPU time."""
    begin = time.process_time()
    found = function()
    return found, 1000 * (time.process_time() - begin)


def _runs(scale: Scale, place: Workplace) -> Runs:
    builds, updates = (max(2, round(scale.share * full)) for full in (10, 20))
    pyg = pyg_costs(updates=updates, groups=2 if updates == 2 else 8)
    return {**{row: build_costs(row=row, repeats=builds) for row in ROWS}, "pyg": pyg}


def _data(results: Results, scale: Scale) -> Data:
    rows = [
        ("graph network encoder", f"an update, {what}", float(np.median(ms)))
        if row == "pyg"
        else (row, what, float(np.median(ms)))
        for row, each in results.items()
        for what, ms in each["ms"].items()
    ]
    pyg = results["pyg"]
    facts = {"difference": pyg["difference"], "updates": pyg["updates"]}
    return Data({"": frame(rows, "row", "what", "milliseconds")}, facts)


def _listed(values: Mapping[str, Any]) -> str:
    return "; ".join(name if name in _LONG else f"{name} {said(space)}" for name, space in values.items())


def _shown(data: Data) -> Shown:
    parts = {row: composition(Config.of_row(row)) for row in ROWS}
    spaces = [(spec.name, _listed(spec.takes), _listed(spec.gives)) for spec in parts["wm"].specs]
    ms = data.main.set_index("what")["milliseconds"]
    return {"": draw(list(parts.values()))}, {
        "spaces": frame(spaces, "component", "takes", "gives"),
        "costs": data.main.rename(columns={"milliseconds": "ms"}),
        "wiring": float(ms["fitting the wires"].max()),
        "pyg": f"{ms['an update, PyG'] / ms['an update, plain torch'] - 1:+.1%}",
    }


COMPONENTS = Experiment(
    "Components, and how the rows are composed of them",
    "After the slides on RLgraph (components, build overhead)",
    _runs,
    _data,
    _shown,
    "components",
)
