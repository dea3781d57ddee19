"""`torchrlopt cache ...`: displaying and clearing the cache."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torchrlopt.api.cli.app import app
from torchrlopt.machine.cost import Price, ProfileStore
from torchrlopt.plan.store import PlanStore
from torchrlopt.storage.directory import default_directory


@pytest.fixture
def directory() -> Path:
    """A cache with two plans, one of them timed, a choice, a profile, a probe and an engine."""
    where = default_directory()
    store = PlanStore()
    store.put("a", {"plan": {"steps": []}, "timing": {"gain": 0.5}, "verified": None})
    store.put("b", {"plan": {"steps": []}, "timing": None, "verified": None})
    store.put("c", {"executor": "eager", "searcher": "agent"})
    profile = ProfileStore()
    profile.add("ab" * 32, "eager", [Price(1, number, "Relu", 1.0, 1.0, 1) for number in range(5)])
    profile.put_probe("ab" * 32, {"model": {"launch_us": 3.0}})
    (where / "tensorrt").mkdir()
    (where / "tensorrt" / "x.plan").write_bytes(b"x" * 1000)
    (where / "notes.txt").write_text("the user's own")
    return where


def run(*arguments: str, answer: str = "") -> str:
    result = CliRunner().invoke(app, ["cache", *arguments], input=answer)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def info() -> dict[str, Any]:
    found = json.loads(run("info", "--json"))
    assert isinstance(found, dict)
    return found


def counts(found: dict[str, Any]) -> tuple[int, ...]:
    names = ("plans", "verdicts", "choices", "profiles", "prices", "probes", "files")
    return tuple(found[name] for name in names)


def test_info_counts_what_is_there(directory: Path) -> None:
    found = info()
    assert found["path"] == str(directory)
    assert counts(found) == (2, 1, 1, 1, 5, 1, 1)
    files = [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".txt"]
    assert found["bytes"] == sum(path.stat().st_size for path in files)
    year = time.strftime("%Y")
    assert found["oldest"].startswith(year)
    assert found["newest"].startswith(year)


def test_an_empty_cache_is_not_made_by_looking() -> None:
    found = info()
    assert counts(found) == (0,) * 7
    assert (found["bytes"], found["oldest"], found["newest"]) == (0, None, None)
    assert run("info")
    run("clear", "--yes", "--profiles")
    assert not default_directory().exists()


def test_clear_leaves_profiles(directory: Path) -> None:
    said = run("clear", "--yes")
    assert "2 plans, 1 choices, 1 files" in said
    assert counts(info()) == (0, 0, 0, 1, 5, 1, 0)
    assert (directory / "notes.txt").exists()


def test_clear_takes_profiles_where_asked(directory: Path) -> None:
    run("clear", "--yes", "--profiles")
    assert counts(info()) == (0,) * 7


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 2), ("\n", 2), ("", 2)])
def test_clear_asks(directory: Path, answer: str, left: int) -> None:
    result = CliRunner().invoke(app, ["cache", "clear"], input=answer)
    assert "Delete 2 plans" in result.output
    assert (result.exit_code == 0) == (left == 0)
    assert info()["plans"] == left


def test_files_behind_a_link_stay(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("x")
    (directory / "inductor").symlink_to(tmp_path / "elsewhere")
    run("clear", "--yes")
    assert (tmp_path / "elsewhere" / "mine").exists()


def test_a_cache_that_cannot_be_cleared_is_an_error(directory: Path) -> None:
    directory.chmod(0o777)
    result = CliRunner().invoke(app, ["cache", "clear", "--yes"])
    directory.chmod(0o700)
    assert result.exit_code != 0
    assert "cannot be changed" in str(result.exception)
    assert info()["plans"] == 2
