"""`python -m baselines.decode`: text is generated in processes of their own, and the tokens are compared."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import typer

from baselines import decode


def test_ways_to_generate_are_timed_and_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="the models come from transformers")
    file = tmp_path / "decode.csv"
    decode.main("llama_2m", "torchrlopt", "float32", tokens=4, rounds=2, threads=1, csv=file)
    shown = capsys.readouterr().out
    assert "milliseconds for a token" in shown
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["way"], row["round"]) for row in rows] == [
        (way, number) for way in ("eager", "torchrlopt") for number in ("0", "1")
    ]
    assert all(float(row["ms_per_token"]) > 0 for row in rows)


def test_a_way_that_fails_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decode, "_command", lambda setting, tokens: ["python", "-c", "raise SystemExit(3)"])
    with pytest.raises(typer.Exit):
        decode.main("llama_2m", "eager", "float32", tokens=4, rounds=1, threads=1, csv=None)
    assert "ended with status 3" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("arguments", [("llama_3m", "all"), ("all", "onnxruntime")])
def test_unknown_names_are_refused(arguments: tuple[str, str]) -> None:
    with pytest.raises(typer.BadParameter, match="named"):
        decode.main(*arguments, "float32", tokens=4, rounds=1, threads=1, csv=None)
