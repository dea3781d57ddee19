"""Files of runs, training/experiments/: all that a run depends on decides its name."""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from torchrlopt.substitutions import load_library
from torchrlopt.substitutions.load import subset_of
from training.config import Config
from training.experiments import graph_run, runs, thesis_run
from training.experiments.dissertation import rivals, row_run
from training.experiments.dissertation.measured_run import Form, MeasuredRun
from training.experiments.dissertation.peers_run import PeersRun
from training.experiments.graph_run import GraphRun
from training.experiments.reproduction import EXPERIMENTS
from training.experiments.runs import Run, Scale, Workplace, path_of, with_needs
from training.experiments.thesis_run import ThesisRun
from training.learn_to_optimise.episodes import DriverTask
from training.learn_to_optimise.training_run import LEARNER, Spec, Workers

NOWHERE = Path("nowhere")
RIVALS = rivals.RivalsRun("toy_bert", 0, 100)

#: What does not know of substitutions: the functions of the thesis, and cores alone.
WITHOUT_LIBRARY = {"thesis_run.ThesisRun", "cores_run.CoresRun"}
EPISODES = ThesisRun(Spec(DriverTask("ackley", "heterogeneous"), 0, 10))
ON_GRAPHS = GraphRun(Config.of_row("mf", sampler="heterogeneous"), test_graphs=2)
MEASURED = MeasuredRun("toy_bert", "eager", (Form("as it is"),), 3)
TRAINING = row_run.RowRun("mf", "toy_bert", 0, 4, NOWHERE)


def _of_each_kind() -> dict[str, list[Run[Any]]]:
    place = Workplace(NOWHERE)
    scale = Scale(0.001, 1)
    found: dict[str, list[Run[Any]]] = defaultdict(list)
    for each in EXPERIMENTS.values():
        for run in with_needs(each.runs(scale, place)):
            kind = type(run)
            found[f"{kind.__module__.removeprefix('training.experiments.')}.{kind.__name__}"].append(run)
    return found


@pytest.mark.parametrize("kind", sorted(_of_each_kind()))
def test_another_library_is_another_run(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _of_each_kind()[kind]
    before = [path_of(run, NOWHERE) for run in made]
    assert [path_of(run, NOWHERE) for run in made] == before
    smaller = subset_of(load_library(), load_library().names[:-1])
    for name, module in list(sys.modules.items()):
        if name.startswith("training."):
            for function in ("load_library", "library"):
                if callable(getattr(module, function, None)):
                    monkeypatch.setattr(module, function, lambda *_: smaller)
    same = [path_of(run, NOWHERE) == path for run, path in zip(made, before, strict=True)]
    assert set(same) == {kind in WITHOUT_LIBRARY}


def test_another_agent_is_another_run_of_the_rivals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = RIVALS
    before = path_of(run, NOWHERE)
    monkeypatch.setenv("TORCHRLOPT_AGENT", str(tmp_path / "own.safetensors"))
    assert path_of(run, NOWHERE) != before


@pytest.mark.parametrize("run", [TRAINING, RIVALS])
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


@pytest.mark.parametrize(
    ("run", "module", "constant", "other"),
    [
        (EPISODES, thesis_run, "HOMOGENEOUS", ("random", "sobol")),
        (EPISODES, thesis_run, "POOL", 7),
        (EPISODES, thesis_run, "EVALUATE_EVERY", 3),
        (EPISODES, thesis_run, "STARTS", (0.0,)),
        (EPISODES, thesis_run, "LEARNER", dataclasses.replace(LEARNER, epochs=9)),
        (ON_GRAPHS, graph_run, "HOMOGENEOUS", ("random", "sobol")),
        (ON_GRAPHS, graph_run, "EVALUATIONS", 2),
        (ON_GRAPHS, graph_run, "TEST_KEYS", 5),
    ],
)
def test_other_constants_are_other_runs(
    run: Run[Any], module: Any, constant: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path_of(run, NOWHERE)
    monkeypatch.setattr(module, constant, other)
    assert path_of(run, NOWHERE) != before


@pytest.mark.parametrize("is_timed", [False, True])
def test_a_cluster_changes_times_and_no_data(is_timed: bool) -> None:
    of_functions = [
        ThesisRun(EPISODES.spec, Workers("ray", 2, address), is_timed) for address in ("", "10.0.0.1:6379")
    ]
    of_graphs = [
        GraphRun(dataclasses.replace(ON_GRAPHS.config, collector="ray", ray=address), is_timed=is_timed)
        for address in ("", "10.0.0.1:6379")
    ]
    for here, there in (of_functions, of_graphs):
        assert (path_of(here, NOWHERE) == path_of(there, NOWHERE)) == (not is_timed)


def test_what_is_measured_on_another_processor_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [path_of(run, NOWHERE) for run in (MEASURED, RIVALS)]
    monkeypatch.setattr(runs, "cpu_name", lambda: "another")
    after = [path_of(run, NOWHERE) for run in (MEASURED, RIVALS)]
    assert after[0] != before[0], "times of two machines make no ratio"
    assert after[1] == before[1]


def test_trials_of_tvm_are_a_part_of_what_peers_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PeersRun("toy_bert", ("eager", "tvm"), 3)
    before = path_of(run, NOWHERE)
    monkeypatch.setenv("TVM_TRIALS", "500")
    assert path_of(run, NOWHERE) != before


def test_a_training_by_another_pytorch_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = TRAINING.folder
    monkeypatch.setattr(row_run.torch, "__version__", "9.9.9")
    assert TRAINING.folder != before


def test_a_run_that_was_not_made_is_named() -> None:
    with pytest.raises(KeyError, match=r"rivals-toy_bert.* has not been made"):
        runs.AllFinished({})[RIVALS]
