"""Numbers of docs/training.md are those of the results that are committed, training/results/."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Callable, Iterable, Sequence

import pytest

from tests.docs.pages import ROOT, prose, sections

PAGE = ROOT / "docs" / "training.md"
RESULTS = ROOT / "training" / "results"
TEXT = " ".join(prose(PAGE).split())
Row = dict[str, str]

#: Rows of the table of `efficiency`, by the names of its CSV.
EFFICIENCY = (
    "random_play", "random_macros", "best_first", "price", "belief", "mf", "wm", "wm_plus",
)  # fmt: skip
EXECUTORS = {"eager": "eager", "ONNX Runtime": "onnxruntime"}


def _rows(name: str) -> list[Row]:
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _mean(rows: Iterable[Row], column: str, **those: str) -> float:
    """Of the rows that have the given values."""
    found = [float(row[column]) for row in rows if all(row[name] == value for name, value in those.items())]
    assert found, those
    return statistics.fmean(found)


def _saved(device: str, column: str, *plans: str) -> list[float]:
    rows = _rows("toy_bert")
    return [_mean(rows, column, device=device, plan=plan) for plan in plans]


def _throughput(environment: str, *collectors: str) -> list[float]:
    best = {
        name: max(float(row["steps_per_cpu_second"]) for row in _rows("throughput")
                  if (row["environment"], row["collector"]) == (environment, name))
        for name in ("ours", *collectors)
    }  # fmt: skip
    return [best[name] / best["ours"] for name in collectors]


def _update_ms() -> list[float]:
    rows = _rows("components")
    return [_mean(rows, "milliseconds", what=what) for what in ("an update, PyG", "an update, plain torch")]


def _measured(executor: str, measurements: int, *rows: str) -> list[float]:
    """Percent by which what rows chose after so many measurements is slower than the fastest."""
    found = _rows("measurements")
    return [
        100 * _mean(found, "slower_than_fastest", row=row, executor=executor, measurements=str(measurements))
        for row in rows
    ]


def _gains(name: str, graph: str, *plans: str) -> list[float]:
    rows = _rows(name)
    return [100 * _mean(rows, "predicted_gain", graph=graph, plan=plan, executor="eager") for plan in plans]


def _faster(graph: str) -> list[float]:
    """Median of the rounds in which greedy's plan was measured, by executor."""
    return [
        statistics.median(
            float(row["ratio"]) for row in _rows("fig4.3")
            if (row["graph"], row["plan"], row["executor"]) == (graph, "greedy", executor)
        )
        for executor in EXECUTORS.values()
    ]  # fmt: skip


#: Sentences, and what stands in place of their numbers.
FIGURES: dict[str, Callable[[], Sequence[float]]] = {
    r"MF saves ([\d.]+) % of the predicted time with every": lambda: _saved(
        "cpu", "predicted_time", "MF, the best seed"
    ),
    r"with the best one, ([\d.]+) % of the measured time": lambda: _saved(
        "cpu", "eager", "MF, the best seed"
    ),
    r"greedy search ([\d.]+) % and": lambda: _saved("cpu", "predicted_time", "greedy"),
    r"greedy search [\d.]+ % and (\d+) %": lambda: _saved("cpu", "eager", "greedy"),
    r"best of 17 random episodes ([\d.]+) % and 2 %": lambda: _saved(
        "cpu", "predicted_time", "random, MF's steps"
    ),
    r"in the mean \(([\d.]+) % with the best seed\)": lambda: _saved(
        "cpu", "predicted_time", "WM, the best seed"
    ),
    r"random play with its steps has ([\d.]+) %": lambda: _saved(
        "cpu", "predicted_time", "random, WM's steps"
    ),
    r"GPU the agent saves ([\d.]+) %, MF ([\d.]+) %, WM ([\d.]+) %, greedy ([\d.]+) %": lambda: _saved(
        "cuda", "predicted_time", "our agent", "MF, the best seed", "WM, the best seed", "greedy"
    ),
    r"On ViT, with ([\d.]+) % by greedy, MF saves ([\d.]+) %": lambda: _gains(
        "fig4.3", "vit_s16", "greedy", "mf"
    ),
    r"ResNet-50 runs ([\d.]+) times as fast as the original in eager PyTorch, and ([\d.]+)": lambda: _faster(
        "resnet50"
    ),
    r"On `RewriteEnv` RLlib made ([\d.]+) of our steps and TorchRL ([\d.]+)": lambda: _throughput(
        "RewriteEnv", "Ray RLlib", "TorchRL"
    ),
    r"costs next to nothing, ([\d.]+) and ([\d.]*\d)": lambda: _throughput(
        "CartPole-v1", "Ray RLlib", "TorchRL"
    ),
    r"an update took (\d+) ms of CPU time, (\d+) ms": _update_ms,
    r"measured once, is ([\d.]+) % slower": lambda: _measured("eager", 1, "price"),
    r"MF stands at (\d+) % and (\d+) %": lambda: [
        *_measured("eager", 30, "mf"), *_measured("onnxruntime", 30, "mf")
    ],
    r"Any order is at ([\d.]+) % and ([\d.]+) %": lambda: [
        *_measured("eager", 30, "random"), *_measured("onnxruntime", 30, "random")
    ],
}  # fmt: skip


def _digits(text: str) -> float:
    """Half of the last digit that is written."""
    _, _, behind = text.partition(".")
    return 0.5 * 10 ** -len(behind) + 1e-9


def wrong(text: str, pattern: str, expected: Sequence[float]) -> list[str]:
    """Numbers of a sentence that are other than expected, in the digits that are written."""
    match = re.search(pattern, text)
    if match is None:
        return [f"no such sentence: {pattern}"]
    told = [each for each in match.groups() if each is not None]
    pairs = zip(told, expected, strict=True)
    return [
        f"{match[0]!r}: expected {mine:.4g}"
        for each, mine in pairs
        if abs(float(each) - mine) > _digits(each)
    ]


@pytest.mark.parametrize("pattern", FIGURES)
def test_sentences_have_the_numbers_of_the_results(pattern: str) -> None:
    assert wrong(TEXT, pattern, FIGURES[pattern]()) == []


def test_a_wrong_number_is_seen() -> None:
    assert wrong("MF has 21.7 %", r"MF has ([\d.]+) %", [21.66]) == []
    assert wrong("MF has 21.7 %", r"MF has ([\d.]+) %", [21.8]) == ["'MF has 21.7 %': expected 21.8"]
    assert wrong("MF", r"WM has ([\d.]+) %", [1.0]) == [r"no such sentence: WM has ([\d.]+) %"]


def test_the_table_of_measurements_is_that_of_the_results() -> None:
    rows = _rows("efficiency")
    (table,) = (
        table
        for section in sections(PAGE)
        for table in section.tables
        if table[0][:2] == ["executor", "after"]
    )
    for executor, after, *cells in table[1:]:
        for row, cell in zip(EFFICIENCY, cells, strict=True):
            mean = 100 * _mean(
                rows, "slower_than_best", row=row, executor=EXECUTORS[executor], measurements=after
            )
            assert abs(float(cell.removesuffix(" %")) - mean) <= 0.051, (executor, after, row)


def test_what_two_workers_collect_is_that_of_the_report() -> None:
    report = (RESULTS / "REPORT.md").read_text(encoding="utf-8")
    for row in ("mf", "plan"):
        said = rf"`{row}`, processes: two workers collect ([\d.]+) times .* turn by turn ([\d.]+ to [\d.]+\d)"
        found = re.search(said, report)
        assert found is not None
        assert f"{found[1]} (`{row}`, {found[2]}" in TEXT
