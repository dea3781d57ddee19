"""The device probe: torchrlopt/machine/cost/probe.py, torchrlopt/api/cli/measure.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from torchrlopt import _C
from torchrlopt.api.cli import measure
from torchrlopt.api.cli.app import app
from torchrlopt.errors import OptionsError, UnsupportedError
from torchrlopt.machine.cost import cost_model, device_model, machine_profile, profile_store
from torchrlopt.machine.cost.cuda_probe import FIELDS, LIBRARY, probe_cuda
from torchrlopt.machine.cost.probe import probe_device

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def probe() -> dict[str, object]:
    return probe_device(CPU)


def test_cpu_probe_is_plausible() -> None:
    found = _C.probe_cpu(1)
    sizes = [point["bytes"] for point in found["bandwidth"]]
    assert sizes == sorted(sizes)
    assert len(found["flops_per_us"]) == len(found["stream_per_us"]) == 1
    # From a slow single board computer to what no core reaches.
    assert 1e3 < found["flops_per_us"][0] < 1e6
    for point in found["bandwidth"]:
        assert 100 < point["copy_bytes_per_us"] < 1e7
        assert 100 < point["triad_bytes_per_us"] < 1e7
    first, last = found["bandwidth"][0], found["bandwidth"][-1]
    assert first["triad_bytes_per_us"] > last["triad_bytes_per_us"], "the first-level cache beats memory"


def test_the_probe_calibrates_the_model(probe: dict[str, dict[str, float]]) -> None:
    model = device_model("eager", "cpu", probe)
    for name, value in probe["model"].items():
        assert value > 0
        assert getattr(model, name) == value
    assert model.cache_bytes_per_us >= model.bytes_per_us
    assert model.launch_us < 1000


def test_a_plan_is_machine_independent_until_the_machine_was_looked_at() -> None:
    graph = _C.parse_graph("graph (x: f32[8,32], %w: f32[32,64]) { y = MatMul(x, %w) return y }")
    before = machine_profile("eager", CPU)
    assert before.digest == ""
    assert before.cost_model().total(graph) == cost_model("eager").total(graph)
    measure.look("cpu", again=False)
    assert machine_profile("eager", CPU).digest != ""


def test_device_command_probes_once() -> None:
    runner = CliRunner()
    first = runner.invoke(app, ["device", "--json"])
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    assert json.loads(runner.invoke(app, ["device", "--json"]).stdout) == found
    assert found["device"]["machine"]
    assert found["prices"]["eager"] == 0, "nothing was profiled"
    assert profile_store().probe(found["fingerprint"]) == found["probe"]
    text = runner.invoke(app, ["device"]).stdout
    assert "Gflop/s" in text
    assert "GB/s" in text


@pytest.mark.parametrize("where", ["toaster", "meta"])
def test_unknown_devices_are_refused(where: str) -> None:
    with pytest.raises(OptionsError, match="no such device"):
        measure.look(where, again=False)


def test_a_library_that_was_not_built_says_so(tmp_path: Path) -> None:
    assert probe_cuda(library=tmp_path / "none.so").status == "not built"


def test_a_broken_library_fails_softly(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"not an object file")
    found = probe_cuda(library=path)
    assert found.status == "failed"
    assert found.message


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_cuda_probe_is_built_where_nvcc_is() -> None:
    assert LIBRARY.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_probe_without_a_device() -> None:
    found = probe_cuda()
    assert found.status in ("not built", "no driver", "no device")
    assert found.message
    assert found.results == {}
    with pytest.raises(UnsupportedError, match=found.status):
        measure.look("cuda", again=False)


@pytest.mark.gpu
def test_cuda_probe_is_plausible() -> None:
    found = probe_cuda()
    assert found.status == "ok", found.message
    assert set(found.results) == set(FIELDS)
    assert all(value > 0 for value in found.results.values())
    assert found.results["cache_bytes_per_us"] > found.results["copy_bytes_per_us"]
    assert found.results["round_trip_us"] > found.results["launch_us"]
    assert probe_cuda(device=torch.cuda.device_count()).status == "no device"
