"""Speeds in the pages are those of the raw measurements."""

from __future__ import annotations

import csv
import re
import statistics

import pytest

from baselines.models import NAMES as MODELS
from baselines.table import geometric_mean, markdown
from tests.docs.pages import ROOT, prose, section_of

README, MEASURING = (ROOT / path for path in ("README.md", "docs/measuring.md"))
RESULTS = ROOT / "baselines" / "results"

COLUMNS = {
    "inductor": "inductor",
    "inductor, freezing": "inductor_freezing",
    "ONNX Runtime": "onnxruntime",
    "OpenVINO": "openvino",
    "torchrlopt, `eager`, frozen": "torchrlopt/eager",
    "torchrlopt, `auto`, frozen": "torchrlopt/auto",
}
#: Rows of the README.
FILES = {
    "float32, batch 1, an AMD EPYC of Zen 4": "cpu_batch1_float32_zen4",
    "float32, batch 16, an AMD EPYC of Zen 4": "cpu_batch16_float32_zen4",
    "bfloat16, batch 1, an AMD EPYC of Zen 4": "cpu_batch1_bfloat16_zen4",
    "float32, batch 1, an AMD EPYC of Zen 5": "cpu_batch1_float32_zen5",
    "bfloat16, batch 1, an AMD EPYC of Zen 5": "cpu_batch1_bfloat16_zen5",
    "float32, batch 1, an Intel Xeon": "cpu_batch1_float32_xeon_tiles",
    "float32, batch 1, one thread of an Intel Xeon": "cpu_batch1_float32_xeon",
}
#: Rows of a table in docs/measuring.md, of before there were kernels of our own.
EARLIER = {
    "bfloat16, batch 1 (AVX512-BF16)": "cpu_batch1_bfloat16",
    "float32, batch 16": "cpu_batch16_float32",
}


def _table(name: str) -> list[dict[str, str]]:
    """The table of a CSV file, by its own columns; the last row has the geometric means."""
    lines = markdown(RESULTS / f"{name}.csv").splitlines()
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def _speeds(name: str, column: str, weights: str = "") -> list[float]:
    """Speed-ups over eager PyTorch, of the models that have one; ours for one treatment of weights."""
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["median_ms"]]
    eager = {row["model"]: float(row["median_ms"]) for row in rows if row["peer"] == "eager"}
    return [
        eager[row["model"]] / float(row["median_ms"])
        for row in rows
        if "/".join(filter(None, (row["peer"], row["executor"]))) == column
        and (not weights or row.get("weights", weights) in ("", weights))
    ]


def test_speeds_in_the_readme() -> None:
    header, *rows = section_of(README, "Results").tables[1]
    assert [row[0] for row in rows] == [*FILES]
    for row in rows:
        for heading, cell in zip(header[1:], row[1:], strict=True):
            speeds = _speeds(FILES[row[0]], COLUMNS[heading], "frozen")
            told = "-"
            if speeds:
                assert len(speeds) == len(MODELS)
                told = f"{geometric_mean(speeds):.2f}x ({min(speeds):.2f} to {max(speeds):.2f})"
            assert cell == told, (row[0], heading)


def test_default_options_in_the_readme() -> None:
    name = "cpu_batch1_float32_default"
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["executor"]]
    assert {row["weights"] for row in rows} == {"check"}
    told = []
    for executor in ("eager", "auto"):
        speeds = _speeds(name, f"torchrlopt/{executor}")
        seconds = [float(row["first_call_s"]) for row in rows if row["executor"] == executor]
        assert len(speeds) == len(seconds) == len(MODELS)
        speed = f"{geometric_mean(speeds):.2f}x ({min(speeds):.2f} to {max(speeds):.2f})"
        told.append((speed, f"{min(seconds):.0f} to {max(seconds):.0f} s"))
    _, *table = section_of(README, "Results").tables[0]
    assert [tuple(row[1:]) for row in table] == list(zip(*told, strict=True))


def test_where_it_does_not_help_much() -> None:
    ratios = [
        next(row for row in _table(name) if row["model"] == "mobilenet_v3")[
            "torchrlopt/eager/frozen / best peer"
        ].rstrip("x")
        for name in ("cpu_batch1_float32_zen4", "cpu_batch1_float32_zen5")
    ]
    told = f"mobilenet_v3 reaches {min(ratios)} to {max(ratios)} times the speed"
    assert told in " ".join(prose(README).split())


@pytest.mark.parametrize(
    "name", ["cpu_batch1_float32_zen4", "cpu_batch1_bfloat16_zen4", "cpu_batch16_float32_zen4"]
)
def test_the_means_on_zen_4(name: str) -> None:
    means = _table(name)[-1]
    auto, eager = (means[f"torchrlopt/{each}/frozen / best peer"].strip("*") for each in ("auto", "eager"))
    told = rf"`auto` is at {auto} of the best other peer,[^;]*(?:;| )\s*`eager` (?:is )?at {eager}"
    assert re.search(told, " ".join(prose(MEASURING).split()))


def test_speeds_with_one_thread_on_a_xeon() -> None:
    (header, *rows), *_ = section_of(MEASURING, "One thread on an Intel Xeon").tables
    name = "cpu_batch1_float32_xeon"
    assert [dict(zip(header, row, strict=True)) for row in rows] == _table(name)
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        seconds = [float(row["first_call_s"]) for row in csv.DictReader(file) if row["executor"] == "auto"]
    median = statistics.median(seconds)
    told = f"takes {min(seconds):.0f} to {max(seconds):.0f} s, with a median of {median:.0f} s"
    assert told in " ".join(prose(MEASURING).split())


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Default options", "cpu_batch1_float32_default"),
        ("float32, batch 1", "cpu_batch1_float32"),
        ("Models beside the suite", "cpu_batch1_float32_xeon_extended"),
        ("With tiles", "cpu_batch1_float32_xeon_tiles"),
        ("On an AMD EPYC of Zen 5", "cpu_batch1_float32_zen5"),
        ("On an AMD EPYC of Zen 4", "cpu_batch1_float32_zen4"),
        ("Installed runtimes by default", "cpu_batch1_float32_xeon_held_out"),
        ("Models that the bounds were chosen on", "cpu_batch1_float32_xeon_runtimes"),
    ],
)
def test_speeds_of_all_models(heading: str, name: str) -> None:
    (header, *rows), *_ = section_of(MEASURING, heading).tables
    assert [dict(zip(header, row, strict=True)) for row in rows] == _table(name)


def test_all_models_in_bfloat16_on_zen_4() -> None:
    header, *rows = section_of(MEASURING, "On an AMD EPYC of Zen 4").tables[1]
    table = _table("cpu_batch1_bfloat16_zen4")
    assert [dict(zip(header, row, strict=True)) for row in rows] == table
    near = {row["model"]: float(row["torchrlopt/auto/frozen / best peer"].strip("x")) for row in table[:-1]}
    assert [model for model, ratio in near.items() if ratio < 0.99] == ["ensemble_mlp"]


def test_speeds_in_bfloat16_and_at_batch_16() -> None:
    (header, *rows), *_ = section_of(MEASURING, "bfloat16 at batch 1, and float32 at batch 16").tables
    for row in rows:
        means = _table(EARLIER[row[0]])[-1]
        assert [means.get(name, "-").strip("*") for name in header[1:]] == row[1:], row[0]


def test_what_the_plan_brings() -> None:
    (_, *rows), *_ = section_of(MEASURING, "What the plan brings by itself").tables
    for executor, mean, smallest in rows:
        name = executor.strip("`")
        table = _table("plan_inductor" if name == "inductor" else "plan_onnxruntime_openvino")
        column = [row[f"torchrlopt/{name} / without a plan"] for row in table]
        gains = [float(cell.rstrip("x")) for cell in column[:-1] if cell != "-"]
        assert (mean, smallest) == (column[-1].strip("*"), f"{min(gains):.2f}"), name


def test_where_the_plan_brings_little() -> None:
    column = [row["torchrlopt/onnxruntime / without a plan"] for row in _table("plan_onnxruntime_openvino")]
    little = sum(float(cell.rstrip("x")) <= 1.02 for cell in column[:-1])
    for page in (README, MEASURING):
        assert f"gains 2 % or less on {little} of the {len(MODELS)} models" in " ".join(prose(page).split())
