"""Files of runs, training/experiments/: all that a run depends on decides its name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
from training.config import Config
from training.experiments import graph_run
from training.experiments.dissertation import rivals, row_run, search_run
from training.experiments.measurements import space_run
from training.experiments.runs import Run, path_of

NOWHERE = Path("nowhere")
RUNS: dict[str, tuple[object, Run[Any]]] = {
    "graphs": (graph_run, graph_run.GraphRun(Config.of_row("mf"))),
    "row": (row_run, row_run.RowRun("mf", "toy_bert", 0, 4, NOWHERE)),
    "rivals": (rivals, rivals.RivalsRun("toy_bert", 0, 100)),
    "search": (search_run, search_run.SearchRun("toy_bert", "greedy", 10)),
    "space": (space_run, space_run.SpaceRun("ghost_block_41", "eager", 1)),
}


@pytest.mark.parametrize("kind", RUNS)
def test_another_library_is_another_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, run = RUNS[kind]
    before = path_of(run, NOWHERE)
    assert path_of(run, NOWHERE) == before
    smaller = subset_of(load_library(), load_library().names[:-1])
    name = "library" if kind == "search" else "load_library"
    monkeypatch.setattr(module, name, lambda *_: smaller)
    assert path_of(run, NOWHERE) != before


def test_another_agent_is_another_run_of_the_rivals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, run = RUNS["rivals"]
    before = path_of(run, NOWHERE)
    monkeypatch.setenv("TORCHRLOPT_AGENT", str(tmp_path / "own.safetensors"))
    assert path_of(run, NOWHERE) != before


@pytest.mark.parametrize(
    "run", [row_run.RowRun("mf", "toy_bert", 0, 4, NOWHERE), rivals.RivalsRun("toy_bert", 0, 100)]
)
def test_prices_of_another_device_are_another_run(run: row_run.RowRun | rivals.RivalsRun) -> None:
    other = dataclasses.replace(run, device="cuda")
    assert path_of(other, NOWHERE) != path_of(run, NOWHERE)
    assert other.name != run.name, "the folder of a training is named by it"
