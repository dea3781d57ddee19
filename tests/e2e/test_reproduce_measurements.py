"""How many measurements rows need, at its smallest: training/experiments/measurements/experiment.py."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.e2e.reproduced import check_section
from training.experiments.asking.learners import LEARNERS
from training.experiments.efficiency import asking_run as efficiency
from training.experiments.measurements.asking_run import ROWS
from training.experiments.measurements.experiment import EXECUTORS, TITLES, askings, spaces
from training.experiments.measurements.subjects import QUICK, SUBJECTS
from training.experiments.reproduction import reproduce
from training.experiments.runs import Scale, Workplace, finished

SCALE = Scale(0.001, 2)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A folder in which it was reproduced."""
    found = Workplace(tmp_path_factory.mktemp("reproduce"))
    reproduce(["measurements"], SCALE, found)
    return found


def test_every_graph_of_the_space_is_measured_beside_the_first(place: Workplace) -> None:
    for executor in EXECUTORS:
        run = spaces(SCALE)[QUICK, executor]
        space = finished([run], place.out).outcome(run)
        assert len(space.keys) == len(space.steps) == len(space.ratios) > 10
        assert not space.reasons
        assert 0.3 < space.true[0] < 3, "the first graph beside itself"
        assert space.first_us > 20


def test_every_row_measures_and_ends_near_the_fastest(place: Workplace) -> None:
    runs = askings(SCALE, place)
    found = finished(list(runs.values()), place.out)
    assert {key[0] for key in runs} == set(ROWS)
    for key, run in runs.items():
        asked = found.outcome(run)
        space = finished([run.space], place.out).outcome(run.space)
        assert len(set(asked.order)) == len(asked.order) <= len(space.keys)
        if key[0] in LEARNERS:
            assert asked.order[0] == 0, "episodes begin at the first graph"
            assert asked.real_steps >= len(asked.order) - 1
        else:
            assert len(asked.order) == len(space.keys)
    for executor in EXECUTORS:
        orders = [tuple(found.outcome(runs["random", QUICK, executor, seed]).order) for seed in range(2)]
        assert orders[0] != orders[1]


def test_the_report_has_a_line_for_each_row_and_a_curve(place: Workplace) -> None:
    report = (place.out / "REPORT.md").read_text(encoding="utf-8")
    check_section("measurements", place.out, report)
    for row in ROWS:
        assert report.count(f"\n| {TITLES[row]} |") == len(EXECUTORS)
    assert (place.out / "measurements.png").read_bytes().startswith(b"\x89PNG")
    with (place.out / "measurements.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["row"] for row in rows} == set(ROWS)
    assert all(float(row["slower_than_fastest"]) > -0.5 for row in rows)


def test_the_same_on_demand_is_reported_and_kept(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    path = reproduce(["efficiency"], Scale(0.001, 1), place)
    report = path.read_text(encoding="utf-8")
    check_section("efficiency", tmp_path, report)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}
    assert len(made) == len(efficiency.ROWS) + 1
    assert reproduce(["efficiency"], Scale(0.001, 1), place).read_text(encoding="utf-8") == report
    assert {path: path.stat().st_mtime_ns for path in made} == made, "no run is made twice"


def test_the_question_itself_is_asked_on_ten_graphs_of_different_families() -> None:
    asked = {subject for subject, _ in spaces(Scale(1.0, 5))}
    assert len(asked) == 10 == len({SUBJECTS[name].title for name in asked})
    assert QUICK not in asked
