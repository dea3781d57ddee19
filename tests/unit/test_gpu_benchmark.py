"""The comparison on a GPU: its arguments anywhere, its peers where there is a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("typer", reason="the comparison's command line needs typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer

from baselines import gpu
from baselines.cuda_peers import CUDA_PEERS, CudaPeer, installed_cuda_peers
from baselines.measure import Settings, measure_model
from baselines.peers import PEERS, Case, make_peer


def test_batches() -> None:
    assert gpu.batches("1, 16") == [1, 16]
    for bad in ("", "0", "1,x", "-1"):
        with pytest.raises(typer.BadParameter, match="positive"):
            gpu.batches(bad)


def test_peers_are_known_by_name() -> None:
    assert CUDA_PEERS[0] == PEERS[0]
    assert set(installed_cuda_peers()) <= set(CUDA_PEERS)
    with pytest.raises(ValueError, match="no peer named 'nothing'"):
        make_peer(Case("nasrnn", "nothing", 1, "float32", 1, device="cuda"), "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so() -> None:
    with pytest.raises(typer.BadParameter, match="no CUDA device"):
        gpu.compare(models="nasrnn")
    with pytest.raises(ValueError, match="no CUDA device"):
        CudaPeer(Case("nasrnn", "eager", 1, "float32", 1, device="cuda"))


@pytest.mark.gpu
def test_peers_are_measured_against_each_other(tmp_path: Path) -> None:
    cases = [
        Case("ensemble_mlp", peer, 1, "bfloat16", 1, device="cuda")
        for peer in ("eager", "inductor_cudagraphs", "torchrlopt_cudagraphs")
    ]
    rows = measure_model(cases, Settings(rounds=2), tmp_path, lambda phase: None)
    assert [row.reason for row in rows] == ["", "", ""]
    assert all(row.median_ms and row.peak_mb for row in rows)
