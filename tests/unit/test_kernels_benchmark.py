"""`python -m baselines.kernels`, on the CPU where it has some of the ways."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
import typer

from baselines import kernels


def test_ways_are_timed_and_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CONVOLUTIONS", {"small": (8, 8, 5, 1, 1, 1)})
    monkeypatch.setattr(kernels, "PRODUCTS", {"small": (2, 8, 8)})
    monkeypatch.setattr(kernels, "SINGLE_PIXELS", {"small": (8, 4)})
    monkeypatch.setattr(kernels, "HEADS", {"small": (2, 8, 9)})
    monkeypatch.setattr(kernels, "IMAGES", {"small": (1, 8, 7)})
    file = tmp_path / "kernels.csv"
    kernels.main("cpu", "float32", 1, file)
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["way"] for row in rows} == {
        "ATen", "channels_last", "product", "one call", "longer, cut", "volume"
    }  # fmt: skip
    assert all(float(row["us"]) > 0 for row in rows)
    options = {"device": torch.device("cpu"), "dtype": torch.float32}
    ways = {way: call() for what, way, call in kernels.convolutions(1, options) if what == "small, bias"}
    torch.testing.assert_close(ways["product"], ways["channels_last"])
    for each in (kernels.single_pixels, kernels.heads, kernels.images):
        first: dict[str, torch.Tensor] = {}
        for what, _, call in each(options):
            result = call()
            assert isinstance(result, torch.Tensor)
            torch.testing.assert_close(first.setdefault(what, result).flatten(), result.flatten())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so() -> None:
    with pytest.raises(typer.BadParameter, match="no CUDA device"):
        kernels.main("cuda", "bfloat16", 1, None)
