"""What `executor="auto"` leaves out by what times and prices foretell: torchrlopt/compile/contest.py."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from baselines import foretold
from tests.unit.test_foreseen import layers
from torchrlopt.compile import choice
from torchrlopt.compile.attempt import Attempt
from torchrlopt.compile.contest import FORETOLD, Contest
from torchrlopt.errors import LoweringError
from torchrlopt.executors import registry
from torchrlopt.options import Options
from torchrlopt.plan.foreseen import price_ratio
from torchrlopt.report import Part, Report, Timing


def contested(after_ms: dict[str, float | None], price: Any, num_parts: int = 0) -> Report:
    """The report of what `executor="auto"` chooses, where the original takes 2 ms."""

    def attempt(options: Options, report: Report) -> Any:
        ms = after_ms[options.executor]
        if ms is None:
            raise LoweringError("cannot", got=options.executor)
        if options.executor == "onnxruntime":
            report.parts = tuple(Part("onnxruntime", 1, "takes it") for _ in range(num_parts))
        report.measured_before_ms, report.measured_after_ms = 2.0, ms
        return Attempt(options.executor, report)  # type: ignore[arg-type]

    options = Options(executor="auto", cache=False, searcher="none")
    contest = Contest(attempt, lambda *_: Timing(1.0, 1.0, 0.0, 0.0, 3), options, Report(), math.inf, price)
    return choice.fastest(contest, options, choice.all_variants(options, torch.device("cpu")), "").report


@pytest.fixture(autouse=True)
def _are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry, "available", lambda device_type: ("eager", "onnxruntime", "openvino", "inductor")
    )


@pytest.mark.parametrize(
    ("onnxruntime_ms", "openvino_ms", "num_parts", "price", "is_tried"),
    [
        (1.1, None, 0, 1.0, False),  # near the best
        (1.6, None, 0, 1.0, False),  # so much slower than the best that inductor would be, too
        (1.6, None, 0, 0.3, True),  # it fuses what the runtime does not
        (1.1, None, 2, 1.0, True),  # which took parts of the graph only
        (None, None, 0, 1.0, True),  # failed: nothing foretells
        (1.6, 1.1, 0, 0.85, False),
        (1.6, 0.8, 0, 0.85, True),  # the least of both
    ],
)
def test_inductor_is_left_out_where_runtimes_foretell_that_it_is_not_the_best(
    onnxruntime_ms: float | None, openvino_ms: float | None, num_parts: int, price: float, is_tried: bool
) -> None:
    after_ms = {"eager": 1.0, "onnxruntime": onnxruntime_ms, "openvino": openvino_ms, "inductor": 0.5}
    report = contested(after_ms, lambda name, other: price, num_parts)
    assert report.executor == ("inductor" if is_tried else "eager") or (openvino_ms or 1.0) < 1.0
    reason = report.choices[-1].reason or ""
    assert ("foretold" in reason) != is_tried
    assert (report.choices[-1].seconds > 0) == is_tried


def test_the_prices_are_of_the_executor_and_of_the_one_that_was_timed() -> None:
    asked: list[tuple[str, str]] = []

    def price(name: str, other: str) -> float:
        asked.append((name, other))
        return 1.0

    contested({"eager": 1.0, "onnxruntime": 1.1, "openvino": 1.2, "inductor": 0.5}, price)
    assert asked == [("inductor", "onnxruntime"), ("inductor", "openvino")]


def test_where_operators_are_small_the_one_that_starts_them_for_less_is_cheaper() -> None:
    assert price_ratio(layers(200, 64), {}, "openvino", "eager") < 0.9
    assert price_ratio(layers(200, 64), {}, "eager", "openvino") > 1.1
    assert price_ratio(layers(12, 2048), {}, "openvino", "eager") == pytest.approx(1.0, abs=0.05)
    assert price_ratio(layers(20, 64, "n"), {"n": 8}, "inductor", "inductor") == 1.0


TABLE = """model,peer,executor,weights,searcher,batch,dtype,threads,median_ms,q1_ms,q3_ms,peak_mb,first_call_s
moe_loop,eager,,,,1,float32,2,8.0,8,8,1,1
moe_loop,inductor_freezing,,,,1,float32,2,4.0,4,4,1,1
moe_loop,onnxruntime,,,,1,float32,2,{},3,3,1,1
moe_loop,torchrlopt,eager,check,,1,float32,2,{},3,3,1,1
nasrnn,eager,,,,1,float32,2,8.0,8,8,1,1
"""


def test_the_table_says_what_leaving_out_costs(tmp_path: Any) -> None:
    (row,) = foretold.rows_of(
        {"moe_loop": {"batch": 1, "inductor_freezing": 4.0, "onnxruntime": 8.0, "torchrlopt/eager": 5.0}},
        "inductor",
    )
    assert row.loss == pytest.approx(0.25)
    assert row.real * row.foretold == pytest.approx(4.0 / 5.0)
    file = tmp_path / "times.csv"
    file.write_text(TABLE.format("3.0", "5.0"))
    app = foretold.typer.Typer()
    app.command()(foretold.main)
    said = CliRunner().invoke(app, [str(file)])
    assert said.exit_code == 0, said.output
    assert "| times | moe_loop | " in said.output
    assert "1 of 1 are left out" in said.output
    assert "costs 0.0% at most" in said.output
    file.write_text(TABLE.format("", "5.0"))
    assert CliRunner().invoke(app, [str(file)]).exit_code == 2
    assert 0 < FORETOLD <= 1
