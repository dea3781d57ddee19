"""The table and sentences on float16 are those of the raw measurements."""

from __future__ import annotations

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
    gain = MEASURED[-1]["torchrlopt/eager"].strip("*")
    assert f"five of the suite are at {gain} of eager PyTorch with default options" in README
    assert len(MEASURED) == 6
