"""The layers inside torchrlopt/executors and torchrlopt/machine: imports go in one direction."""

from __future__ import annotations

import graphlib
from pathlib import Path

import pytest

from tests.package.test_floors import PACKAGE, imported_names, python_files

EXECUTORS = PACKAGE / "executors"

FLOORS = (
    ("lowering", "registry", "device_clock"),
    ("weights", "kept_outputs"),
    ("cuda_graphs", "isolation"),
    ("eager",),
    ("inductor", "onnx_runtimes", "regions"),
    ("tensorrt",),
)
"""Folders and files of executors/, from the lowest floor to the highest."""


def floor_of(name: str) -> int:
    return next(floor for floor, names in enumerate(FLOORS) if name in names)


def modules_imported(path: Path) -> set[str]:
    """The modules and packages below torchrlopt that a file imports, by their dotted names."""
    found = set()
    for name in imported_names(path):
        parts = name.split(".")
        while parts and not is_module(parts):
            parts.pop()  # the name of something in the module
        if len(parts) > 1:
            found.add(".".join(parts))
    return found


def is_module(parts: list[str]) -> bool:
    place = PACKAGE.parent.joinpath(*parts)
    return parts[0] == PACKAGE.name and (
        place.with_suffix(".py").exists() or (place / "__init__.py").exists()
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize(
    "path", python_files(EXECUTORS), ids=lambda path: path.relative_to(EXECUTORS).as_posix()
)
def test_executors_import_from_lower_floors(path: Path) -> None:
    own = path.relative_to(EXECUTORS).parts[0].removesuffix(".py")
    if own == "__init__":
        assert not modules_imported(path), "finding an executor must not import one"
        return
    for name in modules_imported(path):
        package, _, rest = name.removeprefix("torchrlopt.").partition(".")
        other = rest.split(".")[0]
        if package == "executors" and other != own:
            assert floor_of(other) < floor_of(own), f"{own} imports {name}"


@pytest.mark.parametrize("folder", ["executors", "machine"])
def test_no_module_imports_itself_by_way_of_others(folder: str) -> None:
    paths = python_files(PACKAGE / folder)
    graph = {module_name(path): modules_imported(path) - {module_name(path)} for path in paths}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the modules


@pytest.mark.parametrize("folder", ["executors", "machine"])
def test_folders_import_in_one_direction(folder: str) -> None:
    """A folder and a folder inside it count as two."""
    graph: dict[str, set[str]] = {}
    for path in python_files(PACKAGE / folder):
        own = ".".join(path.relative_to(PACKAGE.parent).parent.parts)
        modules = modules_imported(path)
        others = {name if (PACKAGE.parent.joinpath(*name.split("."))).is_dir() else name.rpartition(".")[0]
                  for name in modules}  # fmt: skip
        graph.setdefault(own, set()).update(others - {own})
    list(graphlib.TopologicalSorter(graph).static_order())
