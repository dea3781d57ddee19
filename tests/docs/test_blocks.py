"""Every code block of the documentation works: run, compared, or at least checked as far as possible."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
import types
import warnings
from importlib import util
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import pytest
import torch
import typer
from typer.testing import CliRunner

import torchrlopt
from tests.docs.pages import PAGES, ROOT, Block, blocks, code_words, name_of
from torchrlopt import _C
from torchrlopt.api.cli.app import app
from torchrlopt.substitutions import load_library

#: What stands behind a fence, and what is done with the block. Others are "LANGUAGE quote", whose lines stand
#: in the sources, and "LANGUAGE file NAME", which is written for what follows.
KINDS = {
    "python": "run",
    "sh": "run",
    "sh fails": "run, and fails",
    "sh minutes": "checked: takes minutes",
    "sh hours": "checked: takes half an hour or more",
    "sh gpu": "checked: needs a CUDA device",
    "sh setup": "checked: makes and enters a virtual environment",
    "text output": "compared with what the block above prints",
    "text library": "a text of the library",
    "text diagram": "a picture",
    "mermaid": "a picture",
}

ALL = [block for page in PAGES for block in blocks(page)]


def treatment_of(block: Block) -> str:
    """What is done with a block; empty for one that says nothing."""
    others = re.fullmatch(r"\w+ (quote|file) ?\S*", block.kind)
    return others[1] if others else KINDS.get(block.kind, "")


@pytest.mark.parametrize("block", ALL, ids=lambda block: block.place)
def test_says_how_it_is_treated(block: Block) -> None:
    """A block that nothing checks goes out of date unseen."""
    assert treatment_of(block), f"expected one of {', '.join(KINDS)}; got {block.kind}"


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.kind.startswith("sh")], ids=lambda block: block.place
)
def test_commands_exist(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _enter(tmp_path, monkeypatch)
    for program, *arguments in _commands(block.text):
        if program == "torchrlopt":
            command, rest = _command(arguments)
            command.make_context(command.name, rest)
        elif program == "python":
            name = arguments[1] if arguments[0] == "-m" else arguments[0]
            assert (ROOT / name).is_file() or util.find_spec(name) is not None, name
        elif program == "make":
            _check_targets(arguments)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_between_backticks_exist(page: Path) -> None:
    """They may lack arguments."""
    for word in code_words(page):
        program, *arguments = word.split() or [""]
        if program == "make":
            _check_targets(arguments)
        elif program == "torchrlopt":
            command, rest = _command(arguments)
            known = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
            assert {each for each in rest if each.startswith("-")} <= known, word


def _commands(text: str) -> list[list[str]]:
    """The words of each command, without `NAME=value` in front of it."""
    lines = text.replace("\\\n", " ").splitlines()
    lines = [re.sub(r"^([A-Z_]+=\S* )+", "", line.strip()) for line in lines]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def _command(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command of `torchrlopt` that is meant, or a group of them, and its arguments."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while rest and hasattr(command, "commands"):
        assert rest[0] in command.commands, f"torchrlopt has no command {' '.join(arguments)!r}"
        command = command.commands[rest.pop(0)]
    return command, rest


def _check_targets(targets: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^(\S+ )*{re.escape(target)}( \S+)*:", makefile, re.MULTILINE), f"make {target}"


@pytest.mark.nightly
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the top to the bottom, as a reader would."""
    _enter(tmp_path, monkeypatch)
    names = _module(monkeypatch)
    printed: str | None = None
    for block in blocks(page):
        treatment = treatment_of(block)
        if block.kind == "python":
            printed = _execute(block, names)
        elif block.kind in ("sh", "sh fails"):
            fails = block.kind == "sh fails"
            printed = "".join(_run(words, fails) for words in _commands(block.text))
        elif block.kind == "text output":
            assert printed is not None, f"{block.place}: nothing above it prints"
            assert shape(block.text) == shape(printed), block.place
        elif block.kind == "text library":
            library = load_library()
            for name in _C.Library(block.text).names:
                assert _text(block.text) == _text(library.text(name)), block.place
        elif treatment == "file":
            Path(block.kind.split()[-1]).write_text(block.text, encoding="utf-8")
        elif treatment == "quote":
            _stands_in_the_sources(block)


def _run(words: list[str], fails: bool) -> str:
    """What a command of this project prints, run in this process."""
    program, *arguments = words
    if program == "torchrlopt":
        result = CliRunner().invoke(app, arguments)
        assert bool(result.exit_code) == fails, f"{words}: {result.output}{result.exception!r}"
        return str(result.stdout)
    assert (program, arguments[0]) == ("python", "-m"), "it is not run here: say why behind the fence"
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        mock.patch.object(sys, "argv", arguments[1:]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # that the module has been imported before
        try:
            runpy.run_module(arguments[1], run_name="__main__")
        except SystemExit as ended:  # typer's programs end so, with status 0 where all is well
            if ended.code:
                raise
    return out.getvalue()


def test_the_example_is_planned_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    """Its output names operators and steps; a limit in steps instead of time makes them repeatable."""
    _enter(tmp_path, monkeypatch)
    example, output = (b for b in blocks(PAGES[0]) if b.kind in ("python", "text output"))
    names = _module(monkeypatch)
    _execute(example, names)
    model, x = names["model"], names["x"]
    report = torchrlopt.optimise(model, (x,), budget_ms=600_000, budget_steps=100, measure=False).report
    for row in (f"{report.num_nodes_before} -> {report.num_nodes_after}", f"{len(report.steps)} steps"):
        assert row in output.text
    told = re.findall(r"(\d+) x (\w+_\w+)", output.text)  # names of kernels are words
    assert {name: int(count) for count, name in told} == report.step_counts()


def shape(text: str) -> list[str]:
    """What does not hang on the clock: labels of a table's rows; of plain lines all but the numbers."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("│")]
        if len(cells) > 2:
            # the values in the other rows are the machine's and the clock's
            found.append(line.strip() if cells[1] == "executor" else cells[1])
        elif not re.match(r"^[┌├└]", line):
            found.append(re.sub(r"\d[\d.,]*", "0", line).strip())
    return [each for each in found if each and each != "note"]  # notes depend on the processor


def _enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that looks like the root to commands, with a model in it."""
    for name in ("baselines", "training", "tests", "torchrlopt"):
        (folder / name).symlink_to(ROOT / name)
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> agraph (float[1, 4] x) => (float[1, 4] y) {'
        " t = Relu(x)  y = Relu(t) }"
    )
    onnx.save(graph, folder / "model.onnx")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    monkeypatch.delenv("TORCHRLOPT_AGENT", raising=False)


def _module(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names of a module of its own, as Dynamo wants it; its models draw the same weights each time."""
    torch.manual_seed(1)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return module.__dict__


def _execute(block: Block, names: dict[str, Any]) -> str:
    """What the code prints. Dynamo reads sources: it is made a file, with the line numbers of the page."""
    path = Path(f"{block.page.stem}_{block.line}.py")
    path.write_text("\n" * (block.line - 1) + block.text, encoding="utf-8")
    code = compile(path.read_text(encoding="utf-8"), str(path.absolute()), "exec")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return out.getvalue()


def _text(text: str) -> list[str]:
    """Lines of a substitution without comments and proofs."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "proof "))]


def _stands_in_the_sources(block: Block) -> None:
    folders = (ROOT / name for name in ("csrc", "torchrlopt", "tests", "training", "baselines"))
    endings = (".py", ".h", ".cpp", ".def", ".cu", ".txt")
    sources = [
        path.read_text(encoding="utf-8")
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in endings
    ]
    for line in block.text.splitlines():
        assert any(line.strip() in source for source in sources), f"{block.place}: {line}"
