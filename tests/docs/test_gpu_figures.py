"""The table and sentences of docs/gpu.md are those of the raw measurements."""

from __future__ import annotations

from collections.abc import Sequence

from baselines.table import markdown
from tests.docs.pages import ROOT

RESULTS = ROOT / "baselines" / "results"
RAW, EARLIER = (RESULTS / f"gpu_batch1_bfloat16_{device}.csv" for device in ("h200", "h100"))
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


def test_the_earlier_call() -> None:
    rows = {row["model"]: _ratios(row) for row in _rows(markdown(EARLIER).splitlines())}
    (a, b), (c, d) = rows["mobilenet_v3"], rows["repvgg_a0"]
    said = f"mobilenet_v3 was at {a}x in `eager` and at {b}x in `inductor`, repvgg_a0 at {c}x and {d}x"
    assert said in " ".join(PAGE.split())


def _ratios(row: dict[str, str]) -> list[float]:
    names = ("torchrlopt_cudagraphs", "torchrlopt_inductor")
    return [float(row[f"{name} / best peer"].strip("*x")) for name in names]


def test_the_command_names_the_models() -> None:
    command = PAGE[PAGE.index("```sh gpu") :]
    assert ",".join(MODELS) in command[: command.index("\n```")]
