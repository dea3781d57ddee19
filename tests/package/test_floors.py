"""The rules of the source tree, enforced: layers, order of the C++ folders, line budget, imports."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "torchrlopt"
DESIGN = ROOT / "docs" / "architecture.md"


def floors() -> dict[str, int]:
    """Floor of each folder or file of the package, by the table that people read."""
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", DESIGN.read_text(encoding="utf-8"), re.MULTILINE)
    return {place: int(floor) for floor, place in rows} | {"__init__": 11}


FLOORS = floors()

# On the ground floor the others use errors and the core.
BASEMENT = (
    "torch_private", "plain_text", "console", "errors", "_C", "_tools", "storage", "searcher_table",
    "executor_table", "options", "report", "generated_code",
)  # fmt: skip

# They name modules of upper floors, which are imported when somebody asks for a row.
TABLES = ("searcher_table.py", "executor_table.py")

# What only some places may import.
CONFINED = {
    "torchrlopt._tools": ("torchrlopt/substitutions/", "torchrlopt/api/cli/", "training/generate/"),
    "z3": ("torchrlopt/substitutions/",),
    "tensorrt": ("torchrlopt/executors/tensorrt/",),
    "onnxruntime": (
        "torchrlopt/executors/onnx_runtimes/onnxruntime.py",
        "torchrlopt/executors/onnx_runtimes/onnxruntime_build.py",
        "torchrlopt/executors/onnx_runtimes/file_trial.py",
    ),
    "openvino": (
        "torchrlopt/executors/onnx_runtimes/openvino.py",
        "torchrlopt/executors/onnx_runtimes/openvino_build.py",
    ),
    "torch_geometric": ("training/",),
    "ray": ("training/",),
}

# Folders of csrc: a file includes only files of its own folder and of folders with a smaller number.
CSRC_FOLDERS = {
    folder: int(floor)
    for floor, folder in re.findall(
        r"^\| (\d+) \| `csrc/([\w/]+)` \|", DESIGN.read_text(encoding="utf-8"), re.MULTILINE
    )
}


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def unit_of(path: Path) -> str:
    """The folder or file in FLOORS that a file of the package belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_names(path: Path) -> list[str]:
    """Absolute dotted names that a file imports, also inside functions and for type checkers, or names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif (
            isinstance(node, ast.Constant)
            and id(node) not in docstrings
            and path.name not in TABLES
            and re.fullmatch(r"torchrlopt(\.\w+)+", str(node.value))
        ):
            names.append(str(node.value))  # for importlib
    return names


def imported_units(path: Path) -> set[str]:
    """The parts of the package that a file imports."""
    units = set()
    for name in imported_names(path):
        parts = name.split(".")
        if parts[0] == "torchrlopt":
            units.add(parts[1] if len(parts) > 1 and parts[1] in FLOORS else "__init__")
    return units


@pytest.mark.parametrize("path", python_files(PACKAGE), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    unit = unit_of(path)
    assert unit in FLOORS, f"{path} has no floor"
    for other in imported_units(path) - {unit}:
        if FLOORS[unit] == FLOORS[other] == 0:
            assert BASEMENT.index(other) < BASEMENT.index(unit), f"{unit} imports {other}"
        else:
            assert FLOORS[other] < FLOORS[unit], f"{unit} (floor {FLOORS[unit]}) imports {other}"


def test_every_floor_stands() -> None:
    """The table names nothing that is gone."""
    names = set(FLOORS) - {"__init__", "_C", "_tools"}
    assert names == {unit_of(path) for path in python_files(PACKAGE)} - {"__init__"}


def test_nothing_in_the_package_imports_baselines_or_training() -> None:
    for path in python_files(PACKAGE):
        roots = {name.split(".")[0] for name in imported_names(path)}
        assert not roots & {"baselines", "training", "tests"}, path


def test_confined_packages() -> None:
    folders = [ROOT / name for name in ("torchrlopt", "training") if (ROOT / name).exists()]
    for path in (file for folder in folders for file in python_files(folder)):
        place = path.relative_to(ROOT).as_posix()
        for name in imported_names(path):
            for confined, homes in CONFINED.items():
                if f"{name}.".startswith(f"{confined}."):
                    assert place.startswith(homes), f"{path} imports {name}"


def test_the_package_does_not_compile_with_itself() -> None:
    """A backend by name would be an import that no test of floors can see."""
    for path in python_files(PACKAGE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            given = node.value if isinstance(node, ast.keyword) and node.arg == "backend" else None
            assert not (isinstance(given, ast.Constant) and given.value == "rlopt"), path


def source_files() -> list[Path]:
    kinds = (".py", ".cpp", ".h", ".cu", ".def")
    folders = [ROOT / name for name in ("torchrlopt", "csrc", "baselines", "training", "tests")]
    found = (path for folder in folders if folder.exists() for path in folder.rglob("*"))
    return sorted(path for path in found if path.suffix in kinds and "__pycache__" not in path.parts)


def test_no_versioned_or_catch_all_names() -> None:
    bad = re.compile(r"(_v\d+|^utils?|_utils?|^helpers?|^misc)$")
    assert [str(path) for path in source_files() if bad.search(path.stem)] == []


def csrc_files() -> list[Path]:
    return [path for path in source_files() if path.is_relative_to(ROOT / "csrc")]


def csrc_folder(name: str) -> str:
    """The folder of a file that is named from csrc, as includes are."""
    return name.rpartition("/")[0]


@pytest.mark.parametrize("path", csrc_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_includes_go_down(path: Path) -> None:
    folder = csrc_folder(path.relative_to(ROOT / "csrc").as_posix())
    assert folder in CSRC_FOLDERS, f"csrc/{folder} is no folder of the design"
    for kind, name in re.findall(r'^#include ([<"])([^>"]+)', path.read_text(encoding="utf-8"), re.MULTILINE):
        if kind == '"':
            assert (ROOT / "csrc" / name).is_file(), f"{path.name} includes {name}: not named from csrc"
            other = csrc_folder(name)
            above = other == folder or CSRC_FOLDERS[other] < CSRC_FOLDERS[folder]
            assert above, f"{path.name} includes {name}, which stands on a higher floor"
        elif not folder.endswith("bindings"):
            forbidden = ("pybind11", "Python.h", "torch", "ATen", "c10", "google", "onnx")
            assert not name.startswith(forbidden), f"{path.name} includes <{name}>"


def test_every_csrc_folder_has_a_floor_and_files() -> None:
    sizes = {name: sum(csrc_folder(each) == name for each in csrc_names()) for name in CSRC_FOLDERS}
    assert 0 not in sizes.values()
    assert sum(sizes.values()) == len(csrc_names())


def csrc_names() -> list[str]:
    return [path.relative_to(ROOT / "csrc").as_posix() for path in csrc_files()]


def test_import_loads_nothing_heavy() -> None:
    """Beside torch; how long it takes is measured, not tested."""
    code = (
        "import torch, sys, json; import torchrlopt; "
        "heavy = {'onnx', 'onnx_ir', 'onnxscript', 'onnxruntime', 'openvino', 'rich', 'typer'}; "
        "heavy |= {'torchrlopt._C', 'torchrlopt._tools'}; "
        "print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    assert json.loads(subprocess.check_output([sys.executable, "-c", code], text=True)) == []
