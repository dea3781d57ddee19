"""`python -m baselines.cpu_kernels`: what is timed beside each other computes the same."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from baselines import cpu_kernels
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")


@pytest.mark.parametrize("cases", [cpu_kernels.cases, cpu_kernels.method_cases])
def test_all_ways_compute_the_same(cases: Callable[[], Iterator[tuple[str, list[Any]]]]) -> None:
    with torch.no_grad():
        for what, ways in cases():
            results = [way() for way in ways if way is not None]
            assert len(results) >= 2, what
            for result in results[1:]:
                torch.testing.assert_close(result, results[0], rtol=1e-4, atol=1e-4)


def test_the_file_has_a_row_for_each(tmp_path: Path) -> None:
    cpu_kernels.main(threads=torch.get_num_threads(), calls=1, csv=tmp_path / "kernels.csv")
    with (tmp_path / "kernels.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["what"] for row in rows] == [what for what, _ in cpu_kernels.cases()]
    assert all(float(row["aten_us"]) > 0 for row in rows)
    # With AVX-512 oneDNN is quicker where a group has one vector of outputs.
    assert {row["what"] for row in rows if not row["ours_us"]} <= {"512, 3 x 3, 14 x 14, groups of 16"}
    assert all(float(row["ours_us"]) > 0 for row in rows if row["ours_us"])


def test_methods_beside_each_other(tmp_path: Path) -> None:
    cpu_kernels.main(threads=torch.get_num_threads(), calls=1, methods=True, csv=tmp_path / "methods.csv")
    with (tmp_path / "methods.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["what"] for row in rows] == [*cpu_kernels.METHOD_CONVOLUTIONS, *cpu_kernels.METHOD_PRODUCTS]
    for row in rows:
        there = {name for name in cpu_kernels.METHODS if row[f"{name}_us"]} | {"onednn"}
        assert {"sums", row["chosen"]} <= there
        assert ("bf16x3" in there) == _C.kernel_has_matrix_unit()
        assert ("tiles_of_2" in there) == ("3 x 3" in row["what"])


def test_bfloat16(tmp_path: Path) -> None:
    def run() -> None:
        threads = torch.get_num_threads()
        cpu_kernels.main(threads, calls=1, methods=True, dtype="bfloat16", csv=tmp_path / "methods.csv")

    if not _C.kernel_has_bfloat16():
        with pytest.raises(typer.BadParameter, match="no kernels for bfloat16"):
            run()
        return
    run()
    assert torch.get_default_dtype() is torch.float32
    with (tmp_path / "methods.csv").open(newline="", encoding="utf-8") as lines:
        assert {row["chosen"] for row in csv.DictReader(lines)} == {"sums", "tiles_of_4"}
    with cpu_kernels.default_dtype(torch.bfloat16), torch.no_grad():
        for what, ways in cpu_kernels.cases():
            theirs, *others = [way() for way in ways if way is not None]
            assert theirs.dtype is torch.bfloat16
            for result in others:
                torch.testing.assert_close(result, theirs, rtol=3e-2, atol=3e-2, msg=what)


def test_another_type_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="float16 is none of"):
        cpu_kernels.main(dtype="float16")
