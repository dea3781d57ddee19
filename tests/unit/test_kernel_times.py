"""Kernels of profiled calls, added up: baselines/peers/kernel_times.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from baselines.peers.case import Case
from baselines.peers.kernel_times import KernelTime, Span, summed
from baselines.shared import comparison, csv_files
from baselines.shared.rounds import Row


def _call(start_us: float, slow: float = 0.0) -> list[Span]:
    """A product, two small kernels of which the second begins while the first one runs, and a product."""
    return [
        Span(start_us, 5.0 + slow, "gemm"),
        Span(start_us + 20, 4.0, "void small"),
        Span(start_us + 21, 2.0, "void small"),
        Span(start_us + 30, 7.0, "gemm"),
    ]


def test_medians_over_calls_are_added_up_by_name() -> None:
    spans = [*_call(200.0), *_call(0.0), *_call(100.0, slow=9.0)]  # in any order
    assert summed(spans, 3) == [
        KernelTime("gemm", 2, 12.0, 12.0),
        KernelTime("small", 2, 6.0, 3.0),  # of the first one 3 us have the second beside them
    ]


def test_calls_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="same kernels"):
        summed([*_call(0.0), *_call(100.0)[:3]], 2)
    with pytest.raises(ValueError, match="same kernels"):
        summed([*_call(0.0), *(each._replace(name="other") for each in _call(100.0))], 2)


def test_calls_without_kernels_have_none() -> None:
    assert summed([], 6) == []


def test_lines_have_the_columns(tmp_path: Path) -> None:
    case = Case("nasrnn", "eager", 16, "bfloat16", 1, device="cuda")
    rows = [Row(case, kernels=(KernelTime("gemm", 2, 12.04, 11.0),)), Row(case)]
    comparison.write_kernels(rows, tmp_path / "kernels.csv")
    assert csv_files.read(tmp_path / "kernels.csv", comparison.KERNEL_COLUMNS)[0]["busy_us"] == "11.0"
    lines = comparison.kernel_rows(rows)
    assert lines == [("nasrnn", "eager", "16", "bfloat16", "gemm", "2", "12.0", "11.0")]
    assert len(lines[0]) == len(comparison.KERNEL_COLUMNS)
