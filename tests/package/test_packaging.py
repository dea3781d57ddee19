"""Packaging: contents of a source distribution, refused systems, pinned versions, CI steps."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMPILED = {".so", ".pyc"}
LIBRARIES_OF_CUDA = ("cuda-", "nvidia-", "triton")  # of torch's larger wheels, which name the versions


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


def test_build_asks_for_the_platform(tmp_path: Path) -> None:
    """The refusal comes before anything is compiled."""
    code = (
        "import runpy, setuptools.command.build_ext, sys; sys.platform = 'cygwin'; runpy.run_path('setup.py')"
    )
    command = [sys.executable, "-c", code, "-q", "build_ext", "-b", str(tmp_path), "-t", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "cannot be built on Windows" in run.stderr
    assert list(tmp_path.iterdir()) == []


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


def requirements(of: str, extras: set[str]) -> Iterator[Requirement]:
    """What an installed distribution requires here; nothing where it is not installed."""
    try:
        found = metadata.requires(of) or []
    except metadata.PackageNotFoundError:
        return
    for text in found:
        required = Requirement(text)
        wanted = ({"extra": extra} for extra in (*extras, ""))
        if required.marker is None or any(required.marker.evaluate(each) for each in wanted):
            yield required


def test_constraints_pin_all_that_development_installs() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    names = [canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==\S+$", constraints, re.MULTILINE)]
    assert len(set(names)) == len(names)
    extras = ("baselines", "openvino", "prove", "train", "docs", "dev")
    own = [*PROJECT["dependencies"], *(text for x in extras for text in PROJECT["optional-dependencies"][x])]
    todo = [required for text in own if (required := Requirement(text)).name != PROJECT["name"]]
    seen: set[tuple[str, ...]] = set()
    missing: set[str] = set()
    while todo:
        required = todo.pop()
        name = canonicalize_name(required.name)
        key = (name, *sorted(required.extras))
        if key in seen or name.startswith(LIBRARIES_OF_CUDA):
            continue
        seen |= {key}
        missing |= {name} - set(names)
        todo += requirements(name, required.extras)
    assert sorted(missing) == []


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


CI_CASES = [
    ((0, 0, 0), 0),
    ((3, 0, 0), 3),
    ((0, 4, 5), 4),
    ((2, 4, 5), 2),
    ((0, 0, 6), 6),
]


@pytest.mark.parametrize(("statuses", "expected"), CI_CASES)
def test_ci_goes_on_after_a_failure(statuses: tuple[int, int, int], expected: int, tmp_path: Path) -> None:
    """All steps run, and the status is that of the first that failed."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    tests, lint, sdist = statuses
    make = f"case $1 in test) exit {tests} ;; lint) exit {lint} ;; esac"
    for name, end in (("make", make), (".ci/sdist", f"exit {sdist}")):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>steps\n{end}\n', encoding="utf-8")
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run([tmp_path / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    steps = (tmp_path / "steps").read_text(encoding="utf-8").splitlines()
    assert [step.strip() for step in steps] == ["make test", "make lint", ".ci/sdist"]
    assert run.returncode == expected
    assert run.stderr.count("failed with status") == sum(status != 0 for status in statuses)
