"""The long table, and the benchmark tables made from it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("typer", reason="the command lines need typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer

from baselines import compare, figures, files
from baselines.peers.case import PEERS
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
    again = Results("compare", path, resume=True)
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
    assert first.startswith(
        "| nasrnn | 8.0 | 2.00x (2.00 to 2.00) | 4.00x (4.00 to 4.00) | 2.00x | 300 / 300 |"
    )
    assert means.startswith("| **geomean** |  | **2.00x** | **4.00x** | **2.00x** |")


def test_the_tables_of_the_pages_are_those_of_the_results() -> None:
    stale = [
        page.name for page in figures.PAGES
        if figures.with_figures(text := page.read_text(encoding="utf-8")) != text
    ]  # fmt: skip
    assert stale == [], "`make figures` writes them anew"


def test_files_that_were_not_timed() -> None:
    results = Results("files")
    for peer, nodes, size in (("original", 5, 2e6), ("torchrlopt", 3, 1.5e3), ("onnxslim", None, None)):
        results.add("a", peer, "nodes", nodes, setting="onnxruntime")
        results.add("a", peer, "bytes", size, "B", setting="onnxruntime")
    assert files.table(results.frame).to_dict("records")[0]["torchrlopt"] == "3"
    assert "0 files" in files.summary(results.frame)[0]
