"""Ctrl-C at any moment of an optimisation: nothing is lost, and the next attempt works."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
import types
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
import tqdm

import torchrlopt
from tests import forks
from tests.e2e.models import ConvBranches, build

NUM_MOMENTS = 10
FAKING = ("torch/_subclasses/", "torch/fx/experimental/proxy_tensor", "torch/utils/_python_dispatch")
OURS, DYNAMOS = (str(Path(module.__file__ or "").parent) for module in (torchrlopt, torch._dynamo))


def interrupt(_: int, frame: types.FrameType | None) -> None:
    """As Python handles Ctrl-C, but later where PyTorch cannot bear it, whatever the backend.

    Where it is at work on tensors without data, an exception finds its stack of modes half changed, and
    PyTorch ends the process ("trying to set the current UNKNOWN_MODE, but one already exists"). Where Dynamo
    is at work, and no backend of it, the next attempt may find guards that do not hold on their own frame.
    """
    is_in_backend = False
    while frame is not None:
        name = frame.f_code.co_filename
        is_in_backend |= name.startswith(OURS)
        if any(part in name for part in FAKING) or (name.startswith(DYNAMOS) and not is_in_backend):
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def until_it_works(work: Callable[[], None], note: Path, ready: int) -> Callable[[], None]:
    """A function that does the work, again if it is interrupted, and notes whether it was.

    From when on it may be interrupted, it says by a byte to the file descriptor `ready`.
    """

    def repeated() -> None:
        # PyTorch's progress bars have a lock that forked processes share: an interrupt between taking and
        # releasing it, which is not atomic, would stop all that are forked later, and this one.
        tqdm.tqdm.set_lock(threading.RLock())
        signal.signal(signal.SIGALRM, interrupt)
        signal.signal(signal.SIGINT, interrupt)
        os.write(ready, b"!")
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

    optimise_and_call()  # here, since an import of PyTorch's that is interrupted is not made good by the next
    monkeypatch.setenv("TORCHRLOPT_CACHE_DIR", str(tmp_path / "uninterrupted"))
    begin = time.monotonic()
    forks.run(optimise_and_call)
    duration, draw = time.monotonic() - begin, random.Random(0)
    notes = [tmp_path / f"interrupted_{number}" for number in range(NUM_MOMENTS)]
    for number, note in enumerate(notes):
        # every other one finds what the one before has stored
        monkeypatch.setenv("TORCHRLOPT_CACHE_DIR", str(tmp_path / str(number // 2)))
        read, write = os.pipe()
        child = forks.fork(until_it_works(optimise_and_call, note, write))
        os.close(write)
        assert os.read(read, 1) == b"!", "the child is gone"
        os.close(read)
        time.sleep(draw.uniform(0, 0.9 * duration))
        os.kill(child, signal.SIGINT)
        assert forks.wait(child) == 0
        for path in (tmp_path / str(number // 2)).rglob("*.sqlite"):
            with closing(sqlite3.connect(path)) as database:
                assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert any(note.exists() for note in notes)
