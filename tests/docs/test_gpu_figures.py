"""The table and sentences of docs/gpu.md are those of the raw measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from baselines.table import markdown
from tests.docs.pages import ROOT

RAW = ROOT / "baselines" / "results" / "gpu_batch1_bfloat16_h100.csv"
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def _rows(lines: Sequence[str]) -> list[dict[str, str]]:
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


MEASURED = _rows(markdown(RAW).splitlines())
MODELS = [row["model"] for row in MEASURED[:-1]]
MEANS = {name: text.strip("*") for name, text in MEASURED[-1].items()}


def test_the_table_is_a_part_of_the_measured_one() -> None:
    first = PAGE.index("| model | eager ms |")
    shown = _rows(PAGE[first : PAGE.index("\n\n", first)].splitlines())
    assert len(shown) == len(MEASURED)
    assert shown == [{name: row[name] for name in shown[0]} for row in MEASURED]


def test_the_readme_says_the_same() -> None:
    assert f"are at {MEANS['torchrlopt']} of eager PyTorch with default options" in README
    graphs = (MEANS[f"{peer}_cudagraphs"] for peer in ("torchrlopt", "inductor", "eager"))
    ours, inductor, alone = graphs
    assert f"they are at {ours}, where inductor with CUDA graphs is at {inductor} and " in README
    assert f" and CUDA graphs alone at {alone}" in README


def test_who_is_ahead() -> None:
    names = ("torchrlopt_cudagraphs", "torchrlopt_inductor")
    ratios = [[float(row[f"{name} / best peer"].rstrip("x")) for name in names] for row in MEASURED[:-1]]
    assert sum(max(each) > 1 for each in ratios) == 6
    assert "on six of the eight, with the better of its two executors" in " ".join(PAGE.split())
    assert sum(each[0] < 1 for each in ratios) == 3
    assert "on three of the eight inductor is faster" in README
    assert sum(each[1] < 1 for each in ratios) == 3
    text = " ".join(PAGE.split())
    assert f"(`torchrlopt_inductor`) {MEANS['torchrlopt_inductor / best peer'][:-1]} times as fast" in text
    assert "slower on three" in text
    named = ("nasrnn", "bert_base", "vit_s16")
    rest = [each[1] for each, name in zip(ratios, MODELS, strict=True) if name not in named]
    assert f"slower by {100 * (1 - statistics.geometric_mean(rest)):.0f} %" in text


def test_the_command_names_the_models() -> None:
    command = PAGE[PAGE.index("```sh gpu") :]
    assert ",".join(MODELS) in command[: command.index("\n```")]
