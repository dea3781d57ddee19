"""The house rules of baselines/: what may import what, and that each command says how it is used."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command lines need typer")
pytest.importorskip("transformers", reason="the suite's transformers come from the transformers package")

import typer
from typer.testing import CliRunner

FOLDER = Path(__file__).resolve().parents[2] / "baselines"
SUITE = {"zoo", "models", "graphs", "errors"}
COMMANDS = {path.stem for path in FOLDER.glob("*.py")} - SUITE - {"__init__"}


def imports_of(place: str) -> set[str]:
    """The files and folders of baselines/ that a file or folder of it imports, itself left out."""
    files = [FOLDER / f"{place}.py", *(FOLDER / place).rglob("*.py")]
    found: set[str] = set()
    for path in filter(Path.is_file, files):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "baselines":
                names = (
                    [node.module]
                    if node.module != "baselines"
                    else [f"baselines.{a.name}" for a in node.names]
                )
                found |= {str(name).split(".")[1] for name in names}
    return found - {place}


def test_imports_go_one_way() -> None:
    assert imports_of("zoo") == set()
    assert imports_of("models") <= {"zoo"}
    assert imports_of("graphs") <= {"models"}
    assert imports_of("peers") <= SUITE
    assert imports_of("errors") == set()
    assert imports_of("runtime_accuracy") <= {"shared"}
    assert imports_of("collection") <= {"zoo", "errors"}
    assert imports_of("shared") <= SUITE | {"peers"}
    assert {name: imports_of(name) & COMMANDS for name in COMMANDS} == {name: set() for name in COMMANDS}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_an_example_that_it_can_read(name: str) -> None:
    app = typer.Typer()
    app.command()(importlib.import_module(f"baselines.{name}").main)
    shown = CliRunner().invoke(app, ["--help"], terminal_width=200)
    assert shown.exit_code == 0, shown.output
    example = re.search(rf"Example: python (-m baselines\.|baselines/){name}(\.py)? (.+)", shown.output)
    assert example, shown.output
    options = [word for word in example[3].split() if word.startswith("--")]
    documented = set(re.findall(r"--[a-z-]+", shown.output.replace(example[0], "")))
    assert set(options) <= documented
