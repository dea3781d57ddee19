"""`torchrlopt info` and `torchrlopt agent info`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torchrlopt import executor_table
from torchrlopt.api.cli import installation
from torchrlopt.api.cli.app import app
from torchrlopt.errors import AgentError
from torchrlopt.executors import registry
from torchrlopt.substitutions import load_library


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_info_names_every_executor_and_whether_it_runs() -> None:
    found = json.loads(run("info", "--json"))
    assert found["torch.compile finds the backend"] is True
    runs = {name for name, says in found["executors"].items() if says.startswith("runs on cpu")}
    assert list(found["executors"]) == list(executor_table.names())
    assert runs == set(registry.available("cpu"))
    assert found["substitutions"] == len(load_library())
    assert Path(found["agent"]).exists()
    for name in executor_table.names():
        assert name in run("info")


def test_info_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "version", lambda _: "")
    monkeypatch.setattr(registry, "available", lambda _: ("eager",))
    executors = installation.look()["executors"]
    assert executors["eager"] == "runs on cpu"
    assert executors["openvino"] == "not installed: pip install openvino, needs cpu"
    assert executors["tensorrt"] == "not installed: pip install tensorrt, needs cuda"


def test_an_agent_tells_how_it_came_about() -> None:
    found = json.loads(run("agent", "info", "--json"))
    assert (found["row"], found["kind"]) == ("wm_plus", "agent")
    assert found["updates"] in run("agent", "info")
    assert json.loads(run("agent", "info", found["file"], "--json")) == found


def test_an_agent_that_is_none_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["agent", "info", str(tmp_path / "nothing.safetensors")])
    assert isinstance(result.exception, AgentError)
