"""The table and sentences of docs/gpu.md are those of the raw measurements."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from baselines.table import markdown
from tests.docs.pages import ROOT

RESULTS = ROOT / "baselines" / "results"
RAW, LATER = (RESULTS / f"gpu_batch1_bfloat16_{device}.csv" for device in ("h200", "h100"))
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
    names = ("torchrlopt", "torchrlopt_cudagraphs", "torchrlopt_inductor", "inductor_cudagraphs")
    default, eager, inductor, alone = (MEANS[name] for name in names)
    assert f"ten models of the suite are at {default} of eager PyTorch with default options" in README
    assert f"at {eager} in `eager` and at {inductor} in `inductor`" in README
    assert f"where inductor without torchrlopt is at {alone}; on one of the ten, nasnet_a" in README
    assert len(MODELS) == 10


def test_who_is_ahead() -> None:
    behind = [row["model"] for row in MEASURED[:-1] if min(_ratios(row)) < 1]
    assert behind == ["nasnet_a"]
    text = " ".join(PAGE.split())
    assert "the medians of both of its executors are ahead of inductor's on nine of the ten" in text
    assert f"(`torchrlopt_inductor`) {MEANS['torchrlopt_inductor / best peer'][:-1]} times as fast" in text


def test_the_table_of_the_later_call() -> None:
    rows = _rows(markdown(LATER).splitlines())
    first = PAGE.rindex("| model | eager ms |")
    shown = _rows(PAGE[first : PAGE.index("\n\n", first)].splitlines())
    assert shown == [{name: row[name] for name in shown[0]} for row in rows]
    best = {row["model"]: max(_ratios(row)) for row in rows[:-1]}
    assert [model for model, ratio in best.items() if ratio < 1] == ["nasnet_a"]
    assert (len(best), sorted(best.values())[1]) == (11, 1.04)
    assert "ahead of inductor on ten of the eleven, by 4 % at least" in " ".join(PAGE.split())
    assert f"nasnet_a is at {best['nasnet_a']}x in `inductor`" in PAGE
    assert ",".join(best) in PAGE[: PAGE.rindex("--jobs 44")]


def test_where_the_time_of_the_later_call_goes() -> None:
    with (RESULTS / "gpu_kernels_bfloat16_h100.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["peer"] == "torchrlopt_cudagraphs"]
    text = " ".join(PAGE.split())

    def of(model: str, *names: str) -> tuple[int, float]:
        found = [
            row for row in rows if row["model"] == model and any(name in row["kernel"] for name in names)
        ]
        return sum(int(row["launches"]) for row in found), sum(float(row["busy_us"]) for row in found) / 1e3

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


def _ratios(row: dict[str, str]) -> list[float]:
    names = ("torchrlopt_cudagraphs", "torchrlopt_inductor")
    return [float(row[f"{name} / best peer"].strip("*x")) for name in names]


def test_the_command_names_the_models() -> None:
    command = PAGE[PAGE.index("```sh gpu") :]
    assert ",".join(MODELS) in command[: command.index("\n```")]
