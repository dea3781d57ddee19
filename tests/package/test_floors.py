"""The rules of the source tree that no linter knows; those of imports are contracts of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "torchrlopt"
DESIGN = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

# The C++ of the package, and of the generator, which includes files of both by the same names.
CSRC = (ROOT / "csrc", ROOT / "training" / "generate" / "csrc")
# A file includes only files of its own folder and of folders with a smaller number; "" is the top folder.
CSRC_FOLDERS = {
    folder: int(floor)
    for floor, folder in re.findall(
        r"^\| (\d+) \| `(?:training/generate/)?csrc/?([\w/]*)` \|", DESIGN, re.MULTILINE
    )
}


def test_the_contract_is_the_table_of_floors_that_people_read() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = [set(text.split(" | ")) for text in config["tool"]["importlinter"]["contracts"][0]["layers"]]
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", DESIGN, re.MULTILINE)
    floors = [{place for _, place in found} for _, found in groupby(rows, key=lambda row: row[0])]
    *above, ground = floors
    assert layers[: len(above)] == above
    assert set[str]().union(*layers[len(above) :]) == ground - {"_C", "_tools"}  # they are no Python


def test_the_tools_of_the_core_are_confined() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"import _tools|torchrlopt\._tools", text):
            assert path.relative_to(PACKAGE).as_posix().startswith(("substitutions/", "api/cli/")), path


def test_includes_go_down() -> None:
    paths = [(root, path) for root in CSRC for kind in ("*.cpp", "*.h", "*.cu") for path in root.rglob(kind)]
    for root, path in paths:
        folder = "/".join(path.relative_to(root).parts[:-1])
        assert folder in CSRC_FOLDERS, f"{path} is in no folder of the design"
        text = path.read_text(encoding="utf-8")
        for kind, name in re.findall(r'^#include ([<"])([^>"]+)', text, re.MULTILINE):
            if kind == '"':
                is_named = any((each / name).is_file() for each in CSRC)
                assert is_named, f"{path.name} includes {name}: not named from csrc"
                other = name.rpartition("/")[0]
                is_below = other == folder or CSRC_FOLDERS[other] < CSRC_FOLDERS[folder]
                assert is_below, f"{path.name} includes {name}, which stands on a higher floor"
            elif folder and not folder.endswith("bindings"):
                foreign = ("pybind11", "Python.h", "torch", "ATen", "c10", "google", "onnx")
                assert not name.startswith(foreign), f"{path.name} includes <{name}>"


def test_the_sanitizers_name_tests_that_exist() -> None:
    text = (ROOT / ".ci" / "sanitize").read_text(encoding="utf-8")
    found = []
    for folder, names, name in re.findall(r"(tests/\w+)/test_(?:\{([\w,]+)\}|(\w+))\.py", text):
        found += [f"{folder}/test_{each}.py" for each in (names or name).split(",")]
    assert found
    assert [each for each in found if not (ROOT / each).is_file()] == []
