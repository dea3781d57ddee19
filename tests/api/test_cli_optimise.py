"""`torchrlopt optimise`, and the behaviour common to all commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import typer
from torch.utils._pytree import tree_leaves

import torchrlopt
from tests.api.command import run
from tests.crosses import nightly_but
from tests.e2e.models import Branches, build
from tests.onnx.onnx_text import proto_of
from torchrlopt.api.cli import app

BRANCHES = "tests.api.test_cli_optimise:branches"


def branches() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return build(Branches), (torch.linspace(-1, 1, 80).reshape(5, 16),)


def function() -> tuple[Any, tuple[torch.Tensor, ...]]:
    return torch.relu, (torch.ones(3),)


def interrupted() -> Any:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("kind", nightly_but(["module"], ["file", "module"]))
def test_to_every_kind_of_file(kind: str, tmp_path: Path) -> None:
    model, (x,) = branches()
    source = BRANCHES
    if kind == "file":
        source = str(tmp_path / "in.onnx")
        torch.onnx.export(model, (x,), source, dynamo=True, verbose=False)
    results = {ending: tmp_path / f"out{ending}" for ending in (".onnx", ".rlopt", ".pt2")}
    for out in results.values():
        arguments = ["optimise", source, "-o", str(out), "--option", "searcher=greedy", "--json"]
        arguments += ["--option", "measure=false"]
        status, printed, error = run(*arguments)
        assert status == 0, error
        report = json.loads(printed)
        assert report["kept"] == "rewritten"
        assert report["steps"], "merged"
    with torch.no_grad():
        expected = model(x)
        for ending in (".rlopt", ".pt2"):
            (result,) = tree_leaves(torchrlopt.load(results[ending])(x))  # a file's model returns a tuple
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    saved = onnx.load(results[".onnx"])
    (found,) = onnx.reference.ReferenceEvaluator(saved).run(None, {saved.graph.input[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("optimise", BRANCHES, "-o", "out.tflite"), 2, "expected: .onnx or .rlopt or .pt2; got: .tflite"),
        (("optimise", BRANCHES, "-o", "no/such/folder/out.pt2"), 2, "no such folder"),
        (("optimise", "nowhere.onnx", "-o", "out.onnx"), 2, "no such file"),
        (("optimise", "nowhere.onnx", "-o", "out.pt2"), 2, "no such file"),
        (("optimise", "resnet18", "-o", "out.pt2"), 2, "no model 'resnet18'"),
        (("optimise", BRANCHES, "-o", "out.pt2", "--option", "sercher=x"), 2, "did you mean 'searcher'"),
        (("optimise", "tests.api.test_cli_optimise:function", "-o", "out.pt2"), 2, "torch.nn.Module"),
        (("optimise", BRANCHES, "-o", "out.pt2", "--option", "plan=nowhere.json"), 1, "cannot be read"),
        (("optimise", "broken.onnx", "-o", "out.onnx"), 1, "no ONNX model"),
        (("optimise", BRANCHES), 2, "--out"),
        (("optimize",), 2, "optimi"),
        (("optimise", "tests.api.test_cli_optimise:interrupted", "-o", "out.pt2"), 130, ""),
        (("bench", "tests.api.test_cli_optimise:interrupted"), 130, ""),
    ],
)
def test_status_and_message(
    arguments: tuple[str, ...],
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.onnx").write_bytes(b"hello\nyou")
    code, _, error = run(*arguments)
    assert (code, message in error) == (status, True), error
    assert "Traceback" not in error
    assert not list(tmp_path.glob("out*"))


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
    else:
        for name, each in inner.items():
            if not each.hidden:  # the other spelling of a command
                yield from commands(each, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app.app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_it_takes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(
        proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString()
    )
    (example,) = [line for line in COMMANDS[name].help.splitlines() if line.startswith("Example: ")]
    words = example.split()[1:]
    assert " ".join(words[: len(name.split()) + 1]) == f"torchrlopt {name}"
    COMMANDS[name].make_context(name, words[len(name.split()) + 1 :])


def test_help_says_what_the_status_means() -> None:
    status, printed, _ = run("--help")
    assert status == 0
    assert "130 Ctrl-C" in " ".join(printed.split())


def misfit() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return build(Branches), (torch.ones(5, 3),)


@pytest.mark.hides_errors
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    "arguments",
    [("optimise", "--out", "x.onnx"), ("optimise", "--out", "x.pt2"), ("explain",), ("profile",)],
    ids=" ".join,
)  # fmt: skip
def test_a_model_that_fails_on_its_own_inputs_is_told_in_one_line(
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "tests.api.test_cli_optimise:misfit"
    status, _, err = run(arguments[0], name, *arguments[1:])
    told = [line for line in err.splitlines() if line.startswith("error:")]
    assert status == 2, err
    assert len(told) == 1
    assert "the model fails on the inputs that come with it" in told[0]
    assert name in told[0]
    assert "RuntimeError" in told[0]
    assert "Traceback" not in err


def test_the_package_runs_as_a_module() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "torchrlopt", "version"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout.strip()) == (0, torchrlopt.__version__)


@pytest.mark.parametrize("option", ["--html", "--csv", "--plot"])
def test_a_folder_that_is_not_there_is_said_before_anything_is_done(option: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }"), source)
    command = ["optimise-onnx", str(source), str(out)] if option == "--html" else ["bench", str(source)]
    given = [*command, option, str(tmp_path / "missing" / "file")]
    status, _, error = run(*given)
    assert status == 2
    assert "the folder of the file is not there" in error
    assert not out.exists()


def test_nested_values_of_options_are_a_wrong_command_line(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(proto_of("g (float[2] x) => (float[2] y) { y = Relu(x) }"), source)
    value = "executor_options=" + "[" * 50_000
    given = ["optimise-onnx", str(source), str(tmp_path / "out.onnx"), "-o", value]
    status, _, error = run(*given)
    assert status == 2
    assert error.startswith("error: ")
