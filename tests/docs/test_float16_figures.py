"""The table and sentences on float16 are those of the raw measurements."""

from __future__ import annotations

import csv
import statistics

from baselines.table import markdown
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "executors.md").read_text(encoding="utf-8")
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def _rows(lines: list[str]) -> list[dict[str, str]]:
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


MEASURED = _rows(markdown(ROOT / "baselines" / "results" / "cpu_batch1_float16.csv").splitlines())


def test_the_table_is_a_part_of_the_measured_one() -> None:
    section = PAGE[PAGE.index("## float16 on a CPU") :]
    first = section.index("| model | eager ms |")
    shown = _rows(section[first : section.index("\n\n", first)].splitlines())
    assert shown == [{name: row[name] for name in shown[0]} for row in MEASURED]
    models = ",".join(row["model"] for row in MEASURED[:-1])
    assert f"--models {models} " in section


def test_the_readme_says_the_same() -> None:
    gain, runtime = (MEASURED[-1][name].strip("*") for name in ("torchrlopt/eager", "onnxruntime"))
    assert f"ONNX Runtime alone is at {runtime} there" in README
    assert f"five of the suite are at {gain} of eager PyTorch with default options" in README
    assert len(MEASURED) == 6


def test_what_float32_brings_by_itself() -> None:
    results = ROOT / "baselines" / "results"

    def medians(name: str, peer: str) -> dict[str, float]:
        with (results / name).open(newline="", encoding="utf-8") as lines:
            rows = [row for row in csv.DictReader(lines) if row["peer"] == peer and row["executor"] != "auto"]
        return {row["model"]: float(row["median_ms"]) for row in rows}

    ours = medians("cpu_batch1_float16.csv", "torchrlopt")
    by_hand = medians("cpu_batch1_float16_as_float32.csv", "eager")
    gains = [by_hand[model] / ours[model] for model in ours]
    mean = f"{statistics.geometric_mean(gains):.2f}x"
    assert f"at {mean} in geomean, {min(gains):.2f} to {max(gains):.2f}" in " ".join(PAGE.split())
    assert f"converted to float32 by hand it is {mean}" in README
