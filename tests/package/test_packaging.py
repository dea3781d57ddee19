"""Packaging: contents of a source distribution, refused systems, declared imports."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMPILED = {".so", ".pyc"}


@pytest.fixture
def check_platform(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`check_platform` of setup.py as it is on Windows, which has no `fcntl`."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    found: Callable[[str], None] = runpy.run_path(str(ROOT / "setup.py"))["check_platform"]
    return found


@pytest.mark.parametrize("platform", ["win32", "cygwin"])
def test_windows_is_refused(check_platform: Callable[[str], None], platform: str) -> None:
    with pytest.raises(SystemExit, match=r"cannot be built on Windows.*WSL 2"):
        check_platform(platform)


def test_other_systems_are_told_that_nobody_tried(
    check_platform: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    check_platform("linux")
    assert capsys.readouterr().err == ""
    check_platform("darwin")
    assert "not on darwin" in capsys.readouterr().err


def test_source_distribution_holds_every_source(tmp_path: Path) -> None:
    """By the list that is made for it; `.ci/sdist` builds and uses the real one."""
    # Beside the tree: a list that lies there would be added to, and hide what MANIFEST.in lacks.
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (listing,) = tmp_path.rglob("SOURCES.txt")
    held = set(map(os.path.normpath, listing.read_text(encoding="utf-8").splitlines()))
    sources = (path for folder in ("csrc", "torchrlopt") for path in (ROOT / folder).rglob("*"))
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if path.is_file() and path.suffix not in COMPILED
    }
    wanted |= {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "pyproject.toml", "setup.py"}
    assert wanted - held == set()
    assert [name for name in held if Path(name).suffix in COMPILED] == []


def test_imports_are_declared() -> None:
    """An import of what only another dependency brings along ends with that dependency's next release."""
    texts = [
        *PROJECT["dependencies"],
        *(text for each in PROJECT["optional-dependencies"].values() for text in each),
    ]
    declared = {canonicalize_name(Requirement(text).name) for text in texts}
    known = {**metadata.packages_distributions(), "sklearn": ["scikit-learn"]}
    own = {"baselines", "tests", "torchrlopt", "training"}
    imported: set[str] = set()
    for path in (path for folder in own for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    assert "numpy" in imported
    foreign = imported - own - set(sys.stdlib_module_names)
    assert [
        name for name in foreign if declared.isdisjoint(map(canonicalize_name, known.get(name, [name])))
    ] == []
