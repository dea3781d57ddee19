"""A cold process with a bundle does no more than a warm one; with another machine's, it skips the search."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.e2e.models import ConvNorm, build
from torchrlopt import optimise
from torchrlopt.api.cli.app import app
from torchrlopt.compile import attempt, backend
from torchrlopt.judge import faster, graph_check
from torchrlopt.machine import device
from torchrlopt.plan import planning
from torchrlopt.plan.store import PlanStore
from torchrlopt.report import Report, Timing
from torchrlopt.storage.bundle import VARIABLE, write_bundle

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
X = torch.randn(2, 3, 9, 9)


class Work:
    """Counts what a warm process does not do, and gives each timing a clear verdict.

    Attributes:
        done: "search", "random check" and "timing", as they happen.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        search, check = planning.search_plan, graph_check.GraphCheck._verify_random

        def searched(*args: Any) -> Any:
            self.done.append("search")
            return search(*args)

        def checked(*args: Any) -> Any:
            self.done.append("random check")
            return check(*args)

        def timed(*_: Any, **__: Any) -> faster.Verdict:
            self.done.append("timing")
            return faster.Verdict(True, Timing(9.0, 3.0, 0.66, 0.01, 9, taken_at=time.time()))

        monkeypatch.setattr(planning, "search_plan", searched)
        monkeypatch.setattr(graph_check.GraphCheck, "_verify_random", checked)
        monkeypatch.setattr(attempt.faster, "against", timed)

    def of(self, directory: Path, bundle: Path | str = "") -> tuple[list[str], Report]:
        """Return what a process with this cache does anew."""
        os.environ["TORCHRLOPT_CACHE_DIR"], os.environ[VARIABLE] = str(directory), str(bundle)
        self.done.clear()
        torch._dynamo.reset()
        backend.reset()
        model = build(ConvNorm)
        report = optimise(model, X, on_error="raise", executor="eager", searcher="greedy").report
        return list(self.done), report


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def cache(command: str, path: Path, directory: Path) -> str:
    os.environ["TORCHRLOPT_CACHE_DIR"] = str(directory)
    result = CliRunner().invoke(app, ["cache", command, str(path)])
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_a_bundle_saves_what_a_warm_cache_saves(work: Work, tmp_path: Path) -> None:
    made, bundle, mine = tmp_path / "made", tmp_path / "bundle", tmp_path / "mine"
    done, first = work.of(made)
    assert done == ["search", "random check", "timing"]
    assert work.of(made)[0] == []
    assert cache("export", bundle, made).startswith("wrote 2 entries")
    done, report = work.of(mine, bundle)
    assert done == []
    assert report.is_cache_hit
    assert (report.kept, report.steps, report.measured_after_ms) == ("rewritten", first.steps, 3.0)
    assert not mine.exists()
    assert "added 2 entries" in cache("import", bundle, mine)
    assert work.of(mine)[0] == []


def test_of_another_machine_only_the_plan_counts(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, bundle, mine = tmp_path / "made", tmp_path / "bundle", tmp_path / "mine"
    _, first = work.of(made)
    cache("export", bundle, made)
    monkeypatch.setattr(device, "fingerprint", lambda _: "another machine")
    done, report = work.of(mine, bundle)
    assert done == ["random check", "timing"]
    assert report.step_counts() == first.step_counts()
    assert work.of(mine)[0] == [], "its own verdicts are stored"
    monkeypatch.setattr(planning, "versions", lambda _: {"torchrlopt": "another version"})
    assert work.of(tmp_path / "third", bundle)[0] == ["random check", "timing"]


HOSTILE: list[Any] = [
    {"steps": [["no_such", 1]]},
    {"steps": [["\ud800", 1]]},  # a lone surrogate, which no UTF-8 has
    {"steps": [["fold_batchnorm_into_conv", 2**40]]},
    {"steps": [[1, "a"]] * 100_000},
    {"steps": "x", "library_hash": None},
    [],
    None,
]


def test_hostile_plans_are_a_miss(work: Work, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = tmp_path / "made"
    _, first = work.of(made)
    own = PlanStore(made).bundled()
    for number, plan in enumerate(HOSTILE):
        claims = {"timing": None, "verified": {"error": 0.0, "own": [[9.0, 9.0]]}}
        if isinstance(plan, dict):
            plan = {**dict(own[0][2]["plan"]), **plan}
        bundle = tmp_path / f"bundle {number}"
        write_bundle(bundle, [(kind, key, {"plan": plan, **claims}) for kind, key, _ in own])
        done, report = work.of(tmp_path / f"own {number}", bundle)
        assert done == ["search", "random check", "timing"]
        assert report.steps == first.steps
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    bundle = tmp_path / "damaged"
    bundle.write_bytes(b"torchrlopt cache bundle 2\nplan")
    assert work.of(tmp_path / "own", bundle)[0] == ["search", "random check", "timing"]
    assert "the bundle is damaged" in caplog.text


def test_two_processes_may_import_at_once(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    write_bundle(bundle, [("plan", str(number), {"number": number}) for number in range(200)])
    command = [sys.executable, "-m", "torchrlopt", "cache", "import", str(bundle)]
    start = functools.partial(subprocess.Popen, command, stdout=subprocess.PIPE, text=True)
    texts = [each.communicate()[0] for each in [start(), start()]]
    assert sorted(text.split(" entries")[0] for text in texts) == ["added 0", "added 200"]
    assert len(PlanStore().entries()) == 200
