"""What `executor="auto"` leaves out by a forecast, and how good that is (baselines/foretold.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from baselines import foretold
from baselines.shared import csv_files
from baselines.shared.comparison import CSV_COLUMNS
from tests.unit.attempts import attempted, contest_of
from torchrlopt.compile import choice
from torchrlopt.errors import LoweringError
from torchrlopt.executors import registry
from torchrlopt.options import Options
from torchrlopt.report import Journal, Part, Report, Timing


def contested(
    after_ms: dict[str, float | None],
    price: Any,
    num_parts: int = 0,
    before_ms: float = 2.0,
    is_calm: bool = True,
) -> Report:
    """The report of what `executor="auto"` chooses.

    Args:
        after_ms: what each executor takes; None where it fails.
        price: the ratio of two prices, by the names of two executors.
        num_parts: that ONNX Runtime takes; 0 where it takes the whole graph.
        before_ms: what the original takes beside ONNX Runtime; 2 ms beside the others.
        is_calm: whether ONNX Runtime was timed in calm.
    """

    def attempt(options: Options, journal: Journal) -> Any:
        ms = after_ms[options.executor]
        if ms is None:
            raise LoweringError("cannot", got=options.executor, is_bug=False)
        if options.executor != "onnxruntime":
            return attempted(options, journal, 2.0, ms)
        journal.add(parts=tuple(Part("onnxruntime", 1, "takes it") for _ in range(num_parts)))
        return attempted(options, journal, before_ms, ms, is_calm=is_calm)

    options = Options(executor="auto", cache=False, searcher="none")
    timing = Timing(1.0, 1.0, 0.0, 0.0, 3)
    contest = contest_of(attempt, lambda *_: timing, options, price)
    variants = choice.all_variants(options, torch.device("cpu"))
    return choice.fastest(contest, options, variants, "").journal.report()


@pytest.fixture(autouse=True)
def _are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry, "available", lambda device_type: ("eager", "onnxruntime", "openvino", "inductor")
    )


@pytest.mark.hides_errors
@pytest.mark.parametrize(
    ("onnxruntime_ms", "openvino_ms", "num_parts", "price", "is_tried"),
    [
        (1.1, None, 0, 1.0, False),  # near the best
        (1.6, None, 0, 1.0, False),  # so much slower than the best that inductor would be, too
        (1.6, None, 0, 0.3, True),  # it fuses what the runtime does not
        (1.1, None, 2, 1.0, True),  # which took parts of the graph only
        (None, None, 0, 1.0, True),  # failed: nothing foretells
        (1.6, 1.1, 0, 0.85, False),
        (1.6, 1.0, 0, 0.85, True),  # the least of both
    ],
)
def test_inductor_is_left_out_where_runtimes_foretell_that_it_is_not_clearly_the_best(
    onnxruntime_ms: float | None, openvino_ms: float | None, num_parts: int, price: float, is_tried: bool
) -> None:
    after_ms = {"eager": 1.0, "onnxruntime": onnxruntime_ms, "openvino": openvino_ms, "inductor": 0.5}
    report = contested(after_ms, lambda name, other: price, num_parts)
    assert report.executor == ("inductor" if is_tried else "eager")
    reason = report.choices[-1].reason or ""
    assert ("times as long as the best, by " in reason) != is_tried
    assert (report.choices[-1].seconds > 0) == is_tried


def test_the_prices_are_of_the_executor_and_of_the_one_that_was_timed() -> None:
    asked: list[tuple[str, str]] = []

    def price(name: str, other: str) -> float:
        asked.append((name, other))
        return 1.0

    contested({"eager": 1.0, "onnxruntime": 1.1, "openvino": 1.2, "inductor": 0.5}, price)
    assert asked == [("inductor", "onnxruntime"), ("inductor", "openvino")]


def test_times_that_were_taken_in_noise_foretell_nothing() -> None:
    after_ms = {"eager": 1.0, "onnxruntime": 1.6, "openvino": None, "inductor": 0.5}
    assert contested(after_ms, lambda *_: 1.0, is_calm=False).executor == "inductor"


def test_the_ratio_to_the_original_counts_where_it_foretells_less() -> None:
    """A moment in which everything took twice as long."""
    after_ms = {"eager": 1.0, "onnxruntime": 1.6, "openvino": None, "inductor": 0.5}
    assert contested(after_ms, lambda *_: 0.8).executor == "eager"
    assert contested(after_ms, lambda *_: 0.8, before_ms=3.0).executor == "inductor"


def test_the_best_has_beaten_the_others_whatever_single_times_say() -> None:
    """By its time ONNX Runtime seems to be faster than eager, which has won the duel."""
    after_ms = {"eager": 1.0, "onnxruntime": 0.8, "openvino": None, "inductor": 0.5}
    assert contested(after_ms, lambda *_: 1.0).executor == "eager"


TABLE = f"""{",".join(CSV_COLUMNS)}
moe_loop,eager,,,,1,float32,2,8.0,8,8,1,1
moe_loop,inductor_freezing,,,,1,float32,2,4.0,4,4,1,1
moe_loop,onnxruntime,,,,1,float32,2,RUNTIME,3,3,1,1
moe_loop,torchrlopt,eager,check,agent,1,float32,2,5.0,3,3,1,1
moe_loop,torchrlopt,auto,check,agent,1,float32,2,3.9,3,3,1,1
moe_loop,torchrlopt,inductor,check,agent,1,float32,2,3.9,3,3,1,1
moe_loop,inductor_freezing,,,,1,bfloat16,2,1.0,4,4,1,1
nasrnn,eager,,,,1,float32,2,8.0,8,8,1,1
"""


def test_the_table_says_what_leaving_out_costs(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    file.write_text(TABLE.replace("RUNTIME", "8.0"))
    (row,) = foretold.rows_of(csv_files.read(file, CSV_COLUMNS))
    assert row.loss == pytest.approx(0.25)  # 5 ms of eager for 4
    assert row.real * row.foretold == pytest.approx(4.0 / 5.0)
    app = typer.Typer()
    app.command()(foretold.main)
    said = CliRunner().invoke(app, [str(file)])
    assert said.exit_code == 0, said.output
    assert "| times | moe_loop | " in said.output
    assert "1 of 1 are left out" in said.output
    assert "costs 25.0% at most" in said.output
    file.write_text(TABLE.replace("RUNTIME", ""))
    assert CliRunner().invoke(app, [str(file)]).exit_code == 2
