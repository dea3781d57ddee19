"""The long table, and the benchmark tables made from it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("typer", reason="the command lines need typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer

from baselines import compare, figures, search
from baselines.peers.case import PEERS
from baselines.shared import plots
from baselines.shared.arguments import choose, numbers, one, writable
from baselines.shared.tables import COLUMNS, Results, markdown, read

OURS = "torchrlopt/eager"


def made(path: Path | None = None) -> Results:
    """Two models in three rounds, of which eager PyTorch is disturbed in one; a peer that fails."""
    results = Results("compare", path, batch=1, dtype="float32", threads=1)
    times = {"eager": (8.0, 8.0, 16.0), "onnxruntime": (4.0, 4.0, 8.0), OURS: (2.0, 2.0, 4.0)}
    for model in ("nasrnn", "ensemble_mlp"):
        for peer, each in times.items():
            for number, ms in enumerate(each):
                results.add(model, peer, "call", ms, "ms", round=number)
            results.add(model, peer, "peak memory", 300.0, "MB")
            results.add(model, peer, "first call", 1.5, "s")
    results.add("nasrnn", "openvino", "failure", None, note="RuntimeError: no such operator")
    return results


def test_names_are_chosen_and_refused() -> None:
    assert choose("inductor, eager,inductor", PEERS, "peer") == ["inductor", "eager"]
    assert choose("all", PEERS, "peer") == list(PEERS)
    with pytest.raises(typer.BadParameter, match="no peer named 'inductr'; did you mean 'inductor'"):
        choose("eager,inductr", PEERS, "peer")
    with pytest.raises(typer.BadParameter, match="one peer at a time"):
        one("eager,inductor", PEERS, "peer")
    assert numbers("1, 16", int, "batch sizes", 1, 64) == [1, 16]
    with pytest.raises(typer.BadParameter, match="expected batch sizes separated by commas"):
        numbers("65", int, "batch sizes", 1, 64)


def test_a_file_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"no folder .*none' to write 'out\.csv' into"):
        writable(tmp_path / "none" / "out.csv")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    results = made(path)
    results.save()
    frame = read(path)
    assert list(frame) == list(COLUMNS)
    pd.testing.assert_frame_equal(frame, results.frame, check_dtype=False)
    assert list(tmp_path.iterdir()) == [path]
    again = Results("compare", path)
    again.keep(frame)
    pd.testing.assert_frame_equal(again.frame, frame, check_dtype=False)


def test_a_commit_that_looks_like_a_number_stays_what_it_is(tmp_path: Path) -> None:
    results = Results("compare", tmp_path / "rows.csv", commit="810e778")
    results.add("nasrnn", "eager", "call", 1.0)
    results.save()
    assert read(tmp_path / "rows.csv").commit.tolist() == ["810e778"]


def test_another_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    with pytest.raises(typer.BadParameter, match=r"there is no file .*other\.csv"):
        read(path)
    path.write_text("model,us\nresnet18,1\n")
    with pytest.raises(typer.BadParameter, match=r"expected the columns benchmark, .*, got model, us"):
        read(path)


def test_speed_ups_are_medians_of_the_rounds_ratios() -> None:
    shown = compare.table(made().frame)
    header, _, first, *_, means = markdown(shown).splitlines()
    assert header.startswith(f"| model | eager ms | onnxruntime | {OURS} | {OURS} / best peer | peak MB |")
    assert first.startswith("| nasrnn | 8.0 | 2.00x | 4.00x | 2.00x | 300 / 300 | 1.5 / 1.5 |")
    assert means.startswith("| **geomean** |  | **2.00x** | **4.00x** | **2.00x** |")


def test_what_a_plan_brings_in_the_same_executor() -> None:
    results = made()
    for model, ms in (("nasrnn", 4.0), ("ensemble_mlp", 1.0)):
        for number in range(3):
            results.add(model, f"{OURS}/none", "call", ms * (2 if number == 2 else 1), "ms", round=number)
    shown = compare.table(results.frame).set_index("model")[f"{OURS} / without a plan"]
    assert shown.tolist() == ["2.00x", "0.50x", "**1.00x**"]


def test_plots_are_drawn(tmp_path: Path) -> None:
    ratios = compare.speed_ups(made().frame)
    plots.bars(ratios, "speed-up", tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_gaps_of_searchers() -> None:
    results = Results("search")
    for searcher, limit, seed, costs in (
        ("greedy", "0.3 s", 0, (2.0, 1.0)),
        ("agent", "0.3 s", 0, (1.0, 1.0)),
        ("agent", "0.3 s", 1, (4.0, 1.0)),
        ("best_known", search.REFERENCE, 0, (1.0, 0.5)),
    ):  # fmt: skip
        for model, cost in zip(("a", "b"), costs, strict=True):
            common = {"setting": limit, "round": seed}
            results.add(model, searcher, "cost", cost, "ms", **common)
            results.add(model, searcher, "expansions", 7, **common)
            results.add(model, searcher, "time", 0.1, "s", **common)
    by_name = search.by_searcher(results.frame).loc["0.3 s"]
    assert by_name.loc["greedy"].tolist() == [2.0, 2.0]
    assert by_name.loc["agent"].tolist() == [2.5, 2.0]
    rivals = search.rival_table(results.frame)
    assert rivals.rival.tolist() == ["greedy", "agent"]
    assert rivals["above best known, %"].tolist() == ["100.00", "112.13"]
    assert rivals["better, worse"].tolist() == ["0, 1", ""]


def test_the_tables_of_the_pages_are_those_of_the_results() -> None:
    stale = [
        page.name for page in figures.PAGES
        if figures.with_figures(text := page.read_text(encoding="utf-8")) != text
    ]  # fmt: skip
    assert stale == [], "`make figures` writes them anew"


def test_a_place_for_a_table_is_found_and_filled() -> None:
    text = "before\n<!-- figures: means plan_inductor -->\nold\n<!-- end -->\nafter"
    filled = figures.with_figures(text)
    assert "old" not in filled
    assert filled.startswith("before\n<!-- figures: means plan_inductor -->\n| peer | geometric mean |")
    assert filled.endswith("|\n<!-- end -->\nafter")
    assert figures.with_figures(filled) == filled
