"""Files of runs, training/experiments/: all that a run depends on decides its name."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
from training.config import Config
from training.experiments import runs
from training.experiments.dissertation import rivals, row_run
from training.experiments.reproduction import EXPERIMENTS
from training.experiments.runs import Run, Scale, Workplace, path_of, with_needs

NOWHERE = Path("nowhere")
RIVALS = rivals.RivalsRun("toy_bert", 0, 100)

#: What does not know of substitutions: the functions of the thesis, and cores alone.
WITHOUT_LIBRARY = {"ThesisRun", "CoresRun"}


def _of_each_kind() -> dict[str, Run[Any]]:
    place = Workplace(NOWHERE)
    scale = Scale(0.001, 1)
    every = [run for each in EXPERIMENTS.values() for run in with_needs(each.runs(scale, place))]
    return {type(run).__name__: run for run in every}


@pytest.mark.parametrize("kind", sorted(_of_each_kind()))
def test_another_library_is_another_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _of_each_kind()[kind]
    before = path_of(run, NOWHERE)
    assert path_of(run, NOWHERE) == before
    smaller = subset_of(load_library(), load_library().names[:-1])
    for name, module in list(sys.modules.items()):
        if name.startswith("training."):
            for function in ("load_library", "library"):
                if callable(getattr(module, function, None)):
                    monkeypatch.setattr(module, function, lambda *_: smaller)
    assert (path_of(run, NOWHERE) == before) == (kind in WITHOUT_LIBRARY)


def test_another_agent_is_another_run_of_the_rivals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = RIVALS
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


def test_only_a_runs_own_defaults_are_left_out_of_its_name() -> None:
    """Those of what it is configured by may change with the code, and what comes of it with them."""
    *_, fields = runs._depends_on(RIVALS)
    assert RIVALS.device == "cpu"
    assert set(fields) == {"graph", "seed", "taso_steps"}
    assert "learning_rate" in repr(runs._depends_on(Config()))
