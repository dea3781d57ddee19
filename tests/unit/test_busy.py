"""The choice on a busy machine: baselines/busy.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import typer

from baselines import busy
from baselines.busy import Answer, losses, render, rows, saved
from baselines.shared import comparison, csv_files
from baselines.shared.disturbance import CONDITIONS, TURN_S

EAGER, ORT = "eager, agent", "onnxruntime, none"


def answer(condition: str, chosen: str, **ratios: float) -> Answer:
    names = {"eager": EAGER, "ort": ORT}
    named = {names[name]: ratio for name, ratio in ratios.items()}
    return Answer("some", condition, chosen, named, 2.0, 1.0, 0.01)


ANSWERS = [
    answer("quiet", ORT, eager=0.9, ort=0.5),
    answer("quiet", ORT, eager=0.8, ort=0.55),
    answer("neighbour", EAGER, eager=0.2, ort=0.7),
    answer("quota", "original", eager=1.1, ort=1.2),
    answer("quota", "inductor, agent"),
]


def test_a_choice_is_worth_its_median_time_on_the_quiet_machine() -> None:
    assert losses(ANSWERS) == [0.0, 0.0, pytest.approx(0.85 / 0.525 - 1), pytest.approx(1 / 0.525 - 1), None]


def test_the_original_may_be_the_best() -> None:
    assert losses([answer("quiet", EAGER, eager=1.25)]) == [pytest.approx(0.25)]
    assert losses([answer("quiet", "original", eager=1.25)]) == [0.0]


def test_table_and_file_have_every_choice() -> None:
    table = rows(ANSWERS, "auto", 2)
    assert [row[:6] for row in table][-2:] == [
        ["some", "quota", "auto", "2", "1", "original"],
        ["some", "quota", "auto", "2", "2", "inductor, agent"],
    ]
    assert all(len(row) == len(busy.CSV_COLUMNS) for row in table)
    assert render(ANSWERS).row_count == 3


def test_a_run_goes_on_where_its_file_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "busy.csv"
    asked: list[tuple[str, str]] = []

    def ask(under: object, model: str, condition: str, executor: str, threads: int) -> Answer:
        asked.append((model, condition))
        return Answer(model, condition, EAGER, {EAGER: 0.5}, 2.0, 1.0, None)

    monkeypatch.setattr(busy, "ask", ask)
    busy.main("resnet18", "auto", "quiet,neighbour", runs=1, threads=2, csv=file)
    assert asked == [("resnet18", "quiet"), ("resnet18", "neighbour")]
    first = saved(file, "auto", 2)
    assert first[0] == Answer("resnet18", "quiet", EAGER, {EAGER: 0.5}, 2.0, 1.0, None)
    asked.clear()
    busy.main("resnet18,toy_bert", "auto", "neighbour", runs=2, threads=2, csv=file)
    assert sorted(asked) == sorted(
        [("toy_bert", "quiet"), ("toy_bert", "neighbour")] * 2
        + [("resnet18", "quiet"), ("resnet18", "neighbour")]
    )
    assert saved(file, "auto", 2)[:2] == first


def test_a_file_of_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "busy.csv"
    csv_files.write(file, busy.CSV_COLUMNS, rows(ANSWERS, "auto", 2))
    with pytest.raises(typer.BadParameter, match="executor auto and 2 threads"):
        busy.main("resnet18", "auto", "quiet", runs=1, threads=1, csv=file)


COMPARED = f"""{",".join(comparison.CSV_COLUMNS)}
resnet18,eager,,,,1,float32,2,20.0,20,20,1,1
resnet18,onnxruntime,,,,1,float32,2,1.0,1,1,1,1
resnet18,torchrlopt,eager,check,agent,1,float32,2,10.0,10,10,1,1
resnet18,torchrlopt,onnxruntime,check,none,1,float32,2,8.0,8,8,1,1
resnet18,torchrlopt,openvino,check,none,1,float32,2,,,,,
resnet18,torchrlopt,eager,frozen,agent,1,float32,2,1.0,1,1,1,1
resnet18,torchrlopt,auto,check,agent,1,float32,2,1.0,1,1,1,1
resnet18,torchrlopt,eager,check,agent,1,float32,1,1.0,1,1,1,1
resnet18,torchrlopt,eager,check,agent,16,float32,2,1.0,1,1,1,1
"""


def test_what_choices_take_may_come_from_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other peers are no choices."""
    times, file = tmp_path / "times.csv", tmp_path / "busy.csv"
    times.write_text(COMPARED)
    known = busy.times_of(times, ["resnet18"], 2)
    assert known == {"resnet18": {"original": 20.0, EAGER: 10.0, ORT: 8.0}}
    chosen = iter([EAGER, ORT, "original", "openvino, none"])
    monkeypatch.setattr(
        busy,
        "ask",
        lambda under, model, *_: Answer(model, "quiet", next(chosen), {EAGER: 0.1}, 2.0, 1.0, None),
    )
    busy.main("resnet18", "auto", "quiet", runs=4, threads=2, times=times, csv=file)
    assert losses(saved(file, "auto", 2), known) == [0.25, 0.0, 1.5, None]
    assert [row["loss"] for row in csv_files.read(file, busy.CSV_COLUMNS)] == [
        "0.2500",
        "0.0000",
        "1.5000",
        "",
    ]
    with pytest.raises(typer.BadParameter, match="what choices take with 2 threads for toy_bert"):
        busy.main("toy_bert", "auto", "quiet", runs=1, threads=2, times=times)
    with pytest.raises(typer.BadParameter, match="with 4 threads for resnet18"):
        busy.main("resnet18", "auto", "quiet", runs=1, threads=4, times=times)


def test_the_neighbour_takes_a_core_and_goes() -> None:
    def spent_s(pid: str) -> float:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9

    me = Path(f"/proc/self/task/{Path('/proc/thread-self').resolve().name}/children")
    before = set(me.read_text().split())  # other tests have servers
    with CONDITIONS["neighbour"]():
        (child,) = set(me.read_text().split()) - before
        end = time.monotonic() + 60
        while spent_s(child) < TURN_S and time.monotonic() < end:
            time.sleep(0.05)
        assert spent_s(child) >= TURN_S
    assert child not in me.read_text().split()


def test_a_choice_is_made_under_each_condition_that_can_be_had() -> None:
    for name, condition in CONDITIONS.items():
        try:
            with condition() as under:
                # Under a quota the command goes through a shell.
                found = busy.ask(under, "ensemble_mlp", name, "eager", 1) if name == "quota" else None
                assert under([sys.executable])[-1] == sys.executable
        except OSError:  # this user may make no control group
            continue
        assert found is None or found.ratios.keys() == {EAGER}
