"""Every code block of the documentation works: run, compared, or at least checked as far as possible."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import torchrlopt
from tests.docs import commands
from tests.docs.commands import CommandError
from tests.docs.pages import PAGES, ROOT, Block, blocks, code_words, name_of
from torchrlopt import _C
from torchrlopt.substitutions import load_library

#: Words behind `sh` for what is checked, but not run, and why.
NOT_RUN = {
    "minutes": "takes minutes",
    "hours": "takes half an hour or more",
    "gpu": "needs a CUDA device",
    "setup": "makes and enters a virtual environment",
}
#: Words behind `text`, and what is done with it.
TEXTS = {
    "output": "compared with what the block above prints",
    "library": "a text of the library",
    "diagram": "a picture",
}
#: Words behind any language: the lines stand in the sources; the block is written for what follows, and the
#: next word is its name.
QUOTE, FILE = "quote", "file"

ALL = [block for page in PAGES for block in blocks(page)]


def kind_of(block: Block) -> str:
    """What is done with a block; empty for one that says nothing."""
    word = block.words[0] if block.words else "run"
    if block.language == "python" and word == "run":
        return "python"
    if block.language == "sh" and word in ("run", "fails", *NOT_RUN):
        return {"run": "sh", "fails": "fails"}.get(word, "check")
    if block.language == "text" and word in TEXTS:
        return word
    if block.language == "mermaid" and word == "run":
        return "diagram"
    if word == QUOTE and block.language not in ("", "text"):
        return QUOTE
    return FILE if word == FILE and len(block.words) == 2 else ""


@pytest.mark.parametrize("block", ALL, ids=lambda block: block.place)
def test_says_how_it_is_treated(block: Block) -> None:
    """A block that nothing checks goes out of date unseen."""
    known = [
        "python",
        "sh",
        "sh fails",
        *(f"sh {word}" for word in NOT_RUN),
        *(f"text {word}" for word in TEXTS),
        "mermaid",
    ]
    got = " ".join((block.language, *block.words))
    assert kind_of(block), (
        f"{block.place}: expected one of {', '.join(known)}, ANY quote, ANY file NAME; got {got!r}"
    )


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.language == "sh"], ids=lambda block: block.place
)
def test_commands_exist(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _enter(tmp_path, monkeypatch)
    for words in commands.split(block.text):
        commands.check(words)


@pytest.mark.parametrize(
    "line",
    [
        "torchrlopt substitution list",
        "torchrlopt substitutions list --familly merge",
        "torchrlopt optimise-onnx no_such.onnx out.onnx",
        "python baselines/no_such.py",
        "python -m baselines.compare --fidelty",
        "python -m baselines.compare --rounds many",
        "python -m training.train --row plan --out runs/x --minuts 3",
        "python -m training.no_such",
        "python -m pytest -m gpus",
        "make demmo",
        "pip install 'torchrlopt[proof]'",
        "export TORCHRLOPT_AGNET=x",
        "rm -rf x",
    ],
)
def test_a_command_that_would_not_work_is_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _enter(tmp_path, monkeypatch)
    with pytest.raises(CommandError):
        commands.check(*commands.split(line))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_between_backticks_exist(page: Path) -> None:
    for word in code_words(page):
        commands.check_mention(word)


@pytest.mark.nightly
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the top to the bottom, as a reader would."""
    _enter(tmp_path, monkeypatch)
    names = _module(monkeypatch)
    printed: str | None = None
    for block in blocks(page):
        kind = kind_of(block)
        if kind == "python":
            printed = _execute(block, names)
        elif kind == "sh":
            printed = "".join(commands.run(words) for words in commands.split(block.text))
        elif kind == "fails":
            printed = "".join(commands.run(words, fails=True) for words in commands.split(block.text))
        elif kind == "output":
            assert printed is not None, f"{block.place}: nothing above it prints"
            assert shape(block.text) == shape(printed), block.place
        elif kind == "library":
            library = load_library()
            for name in _C.Library(block.text).names:
                assert _text(block.text) == _text(library.text(name)), block.place
        elif kind == FILE:
            Path(block.words[1]).write_text(block.text, encoding="utf-8")
        elif kind == QUOTE:
            _stands_in_the_sources(block)


def test_the_example_is_planned_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    """Its output names operators and steps; a limit in steps instead of time makes them repeatable."""
    _enter(tmp_path, monkeypatch)
    example, output = (b for b in blocks(PAGES[0]) if kind_of(b) in ("python", "output"))
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
