"""The comparison on a GPU: its arguments anywhere, its peers where there is a device."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("typer", reason="the comparison's command line needs typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from typer.testing import CliRunner

from baselines import gpu
from baselines.peers.case import PEERS, Case, is_ours
from baselines.peers.cuda import CUDA_PEERS, CudaPeer, installed_cuda_peers
from baselines.peers.registry import make_peer
from baselines.shared import comparison
from baselines.shared.rounds import Settings, measure_model
from baselines.shared.steps import Step


def test_peers_are_known_by_name() -> None:
    assert CUDA_PEERS[0] == PEERS[0]
    with pytest.raises(ValueError, match="no peer named 'nothing'"):
        make_peer(Case("nasrnn", "nothing", 1, "float32", 1, device="cuda"), "")


def test_a_peer_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert set(CUDA_PEERS) - set(installed_cuda_peers()) == {"torchrlopt_tensorrt"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert installed_cuda_peers() == CUDA_PEERS


def test_all_settings_of_torchrlopt_are_ours() -> None:
    """The best of the other peers is none of them."""
    assert [peer for peer in CUDA_PEERS if not is_ours(peer)] == [
        "eager", "eager_cudagraphs", "inductor", "inductor_cudagraphs", "inductor_max_autotune",
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so() -> None:
    with pytest.raises(typer.BadParameter, match="no CUDA device"):
        gpu.main(models="nasrnn")
    with pytest.raises(ValueError, match="no CUDA device"):
        CudaPeer(Case("nasrnn", "eager", 1, "float32", 1, device="cuda"))


def test_all_is_the_probe_the_tests_and_each_model_by_itself() -> None:
    steps = gpu.all_steps(["nasrnn", "resnet18"], ["inductor"], [("bfloat16", 1), ("float32", 16)], 3)
    names = [each.name for each in steps]
    assert names[0] == "probe"
    assert len(set(names)) == len(names)
    assert {"tests/unit/test_cuda.py", "tests/unit/test_tensorrt.py"} <= set(names)
    assert names[-4:] == [
        "nasrnn bfloat16 1",
        "resnet18 bfloat16 1",
        "nasrnn float32 16",
        "resnet18 float32 16",
    ]
    command = steps[-1].command
    app = typer.Typer()
    app.command()(gpu.main)
    shown = CliRunner().invoke(app, [*command[command.index("baselines.gpu") + 1 :], "--help"])
    assert shown.exit_code == 0
    assert command[-2:] == ("--csv", "{csv}")
    if not torch.cuda.is_available():  # the arguments are right up to there
        with pytest.raises(typer.BadParameter, match="no CUDA device"):
            gpu.main("all", models="nasrnn")


def test_what_came_of_a_slice_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = (Step(name, (sys.executable, "-c", code)) for name, code in (("good", ""), ("bad", "1 / 0")))
    gpu.work([good], tmp_path, 60)
    assert "1 of 1 steps done" in capsys.readouterr().out
    with pytest.raises(typer.Exit):
        gpu.work([good, bad], tmp_path, 60)
    assert "bad: failed (1)" in capsys.readouterr().out


@pytest.mark.gpu
def test_peers_are_measured_against_each_other(tmp_path: Path) -> None:
    cases = [
        Case("ensemble_mlp", peer, 1, "bfloat16", 1, device="cuda")
        for peer in ("eager", "inductor_cudagraphs", "torchrlopt_cudagraphs")
    ]
    rows = measure_model(cases, Settings(rounds=2, with_kernels=True), tmp_path, lambda phase: None)
    assert [row.reason for row in rows] == ["", "", ""]
    lines = comparison.kernel_rows(rows)
    assert {line[1] for line in lines} == {case.peer for case in cases}
    assert all(len(line) == len(comparison.KERNEL_COLUMNS) for line in lines)
    assert all(0 < each.busy_us <= each.kernel_us for row in rows for each in row.kernels)
    assert all(row.median_ms and row.peak_mb for row in rows)
    assert [row.over_best is None for row in rows] == [True, True, False]
