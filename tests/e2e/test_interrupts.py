"""Ctrl-C at any moment of an optimisation: nothing is lost, and the next attempt works."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
import types
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

import torchrlopt
from tests import forks
from tests.e2e.models import ConvBranches, build

NUM_MOMENTS = 20
FAKING = ("torch/_subclasses/", "torch/fx/experimental/proxy_tensor", "torch/utils/_python_dispatch")


def interrupt(_: int, frame: types.FrameType | None) -> None:
    """As Python handles Ctrl-C, but later where PyTorch is at work on tensors without data.

    An exception there finds its stack of modes half changed, and PyTorch ends the process, whatever the
    backend ("trying to set the current UNKNOWN_MODE, but one already exists").
    """
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in FAKING):
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def until_it_works(work: Callable[[], None], note: Path) -> Callable[[], None]:
    """A function that does the work, again if it is interrupted, and notes whether it was."""

    def repeated() -> None:
        signal.signal(signal.SIGALRM, interrupt)
        signal.signal(signal.SIGINT, interrupt)
        note.with_suffix(".ready").touch()
        while True:
            try:
                work()
                return
            except KeyboardInterrupt:
                note.touch()

    return repeated


@pytest.mark.usefixtures("fresh_dynamo")
def test_ctrl_c_at_any_moment_of_an_optimisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build(ConvBranches), torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    expected = model(x).detach()

    def optimise_and_call() -> None:
        torch._dynamo.reset()
        fast = torchrlopt.optimise(model, (x,))
        torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)

    begin = time.monotonic()
    forks.run(optimise_and_call)
    duration, draw = time.monotonic() - begin, random.Random(0)
    notes = [tmp_path / f"interrupted_{number}" for number in range(NUM_MOMENTS)]
    for number, note in enumerate(notes):
        # every other one finds what the one before has stored
        monkeypatch.setenv("TORCHRLOPT_CACHE_DIR", str(tmp_path / str(number // 2)))
        child = forks.fork(until_it_works(optimise_and_call, note))
        while not note.with_suffix(".ready").exists():
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.9 * duration))
        os.kill(child, signal.SIGINT)
        assert forks.wait(child) == 0
        for path in (tmp_path / str(number // 2)).rglob("*.sqlite"):
            with closing(sqlite3.connect(path)) as database:
                assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert any(note.exists() for note in notes)
