"""The table and sentences of docs/gpu.md are those of the raw measurements."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from baselines.table import markdown
from tests.docs.pages import ROOT

RESULTS = ROOT / "baselines" / "results"
RAW, BEFORE = (RESULTS / f"gpu_batch1_bfloat16_{device}.csv" for device in ("h200", "h100"))
AUTO = RESULTS / "gpu_auto_bfloat16_h200.csv"
DEFAULT = RESULTS / "gpu_batch1_bfloat16_h200_default.csv"
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def _rows(lines: Sequence[str]) -> list[dict[str, str]]:
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def _of(raw: Path) -> list[dict[str, str]]:
    return _rows(markdown(raw).splitlines())


def _shown(count: int) -> list[dict[str, str]]:
    """One of the tables of the page, from 0."""
    first = -1
    for _ in range(count + 1):
        first = PAGE.index("| model | eager ms |", first + 1)
    return _rows(PAGE[first : PAGE.index("\n\n", first)].splitlines())


@pytest.mark.parametrize(("count", "raw"), enumerate([RAW, AUTO, BEFORE]))
def test_the_tables_are_parts_of_the_measured_ones(count: int, raw: Path) -> None:
    rows, shown = _of(raw), _shown(count)
    assert shown == [{name: row[name] for name in shown[0]} for row in rows]
    command = [each for each in PAGE.split("```") if each.startswith("sh gpu")][count]
    assert ",".join(row["model"] for row in rows[:-1]) in command


def test_the_readme_says_the_same() -> None:
    names = [f"torchrlopt_{name} / best peer" for name in ("cudagraphs", "inductor")]
    (eager, inductor), before = ([_of(raw)[-1][name].strip("*") for name in names] for raw in (RAW, BEFORE))
    assert f"at {eager} of inductor alone in `eager` and at {inductor} in `inductor`" in README
    assert f"at {before[0]} and {before[1]}, `max-autotune`" in README
    assert f"on six at {_of(AUTO)[-1]['torchrlopt_auto / best peer'].strip('*')} " in README
    default = _of(DEFAULT)[-1]["torchrlopt"].strip("*")
    assert f"bring ten models to {default} of eager PyTorch" in README
    assert f"options are at {default} of eager PyTorch" in " ".join(PAGE.split())
    assert [len(_of(raw)) - 1 for raw in (RAW, BEFORE, AUTO, DEFAULT)] == [11, 11, 6, 10]


def test_who_is_ahead() -> None:
    best = {row["model"]: max(_ratios(row)) for row in _of(RAW)[:-1]}
    assert [model for model, ratio in best.items() if ratio < 1] == ["llama_gqa"]
    assert sorted(best.values())[1] == best["nasnet_a"] == 1.02
    text = " ".join(PAGE.split())
    assert "ahead of inductor on ten of the eleven, by 2 % at least (nasnet_a" in text
    best = {row["model"]: max(_ratios(row)) for row in _of(BEFORE)[:-1]}
    assert [model for model, ratio in best.items() if ratio < 1] == ["nasnet_a"]
    assert sorted(best.values())[1] == 1.04
    assert "ahead of inductor on ten of the eleven, by 4 % at least" in text
    eager, inductor = _ratios(next(row for row in _of(BEFORE) if row["model"] == "nasnet_a"))
    assert f"nasnet_a is at {inductor}x in `inductor`, {eager}x in `eager`" in text


def test_the_memory_of_auto() -> None:
    with AUTO.open(newline="") as file:
        peaks = {(row["model"], row["peer"]): float(row["peak_mb"]) for row in csv.DictReader(file)}
    times = {
        model: peak / peaks[model, "inductor_cudagraphs"]
        for (model, peer), peak in peaks.items()
        if peer == "torchrlopt_auto"
    }
    least, most = (choose(times, key=times.__getitem__) for choose in (min, max))
    told = f"takes {times[least]:.1f} ({least}) to {times[most]:.1f} times ({most}) the memory of inductor"
    assert told in " ".join(PAGE.split())


def _sums(device: str, peer: str, model: str, *names: str) -> tuple[int, float]:
    """Launches, and milliseconds, of the kernels that have one of these in their names."""
    with (RESULTS / f"gpu_kernels_bfloat16_{device}.csv").open(newline="") as file:
        found = [
            row
            for row in csv.DictReader(file)
            if (row["model"], row["peer"]) == (model, peer) and any(name in row["kernel"] for name in names)
        ]
    return sum(int(row["launches"]) for row in found), sum(float(row["busy_us"]) for row in found) / 1e3


def test_where_the_time_goes() -> None:
    text = " ".join(PAGE.split())

    def of(model: str, *names: str) -> tuple[int, float]:
        return _sums("h100", "torchrlopt_cudagraphs", model, *names)

    assert f"kernels take {of('nasnet_a', '')[1]:.1f} ms" in text
    num, ms = of("nasnet_a", "convolve_common")
    assert f"{num} launches, nearly all" in text
    assert f"had made, take {ms:.2f} ms" in text
    assert f"{of('nasnet_a', 'nhwcAddPadding')[0]} paddings" in text
    ms = of("nasnet_a", "nhwcAddPadding", "memset", "Memset")[1]
    assert f"memory that is cleared for them, {ms:.2f} ms" in text
    num, ms = of("nasnet_a", "direct_copy")
    assert f"{num} copies, mostly" in text
    assert f"where they are joined, {ms:.2f} ms" in text
    num, ms = of("inception_v3", "direct_copy")
    assert f"has {num} such copies, {ms:.2f} of its {of('inception_v3', '')[1]:.2f} ms" in text


def test_where_the_time_went_since() -> None:
    text = " ".join(PAGE.split())

    def of(model: str, *names: str, peer: str = "torchrlopt_cudagraphs") -> tuple[int, float]:
        return _sums("h200", peer, model, *names)

    num = [of("nasnet_a", name)[0] for name in ("convolve_common", "nhwcAddPadding", "direct_copy")]
    assert f"have {num[0]} launch of groups, {num[1]} paddings and {num[2]} such copies" in text
    ms = of("nasnet_a", "")[1], _sums("h100", "torchrlopt_cudagraphs", "nasnet_a", "")[1]
    assert f"kernels take {ms[0]:.1f} ms and not {ms[1]:.1f}" in text
    ms = (
        of("nasnet_a", "", peer="torchrlopt_inductor")[1],
        _sums("h100", "torchrlopt_inductor", "nasnet_a", "")[1],
    )
    assert "in `inductor` {:.1f} ms and not {:.1f}".format(*ms) in text
    assert f"inception_v3 has {of('inception_v3', 'direct_copy')[0]} copies" in text
    ours, theirs = (
        of("llama_gqa", "", peer=peer)[1] for peer in ("torchrlopt_inductor", "inductor_cudagraphs")
    )
    assert f"kernels take {ours * 1e3:.0f} us of a call of 450" in text
    assert f"those of inductor alone {theirs * 1e3:.0f} of 390" in text


def _ratios(row: dict[str, str]) -> list[float]:
    names = ("torchrlopt_cudagraphs", "torchrlopt_inductor")
    return [float(row[f"{name} / best peer"].strip("*x")) for name in names]
