"""Compiles, calls, changes and discards models for minutes, and monitors the resources of the process.

Every round takes a small model with random options, compares its results with eager PyTorch, changes its
weights in one of several ways, compares again, and discards it. After the warm-up, the numbers of threads and
open files must not grow. Every use of torch.compile leaks some memory (Dynamo's guards of code that is gone):
rounds with its backend `aot_eager` alternate with ours, which must not leak more.

The measured memory is what malloc has handed out and not got back. Python's own allocator is disabled
(`PYTHONMALLOC=malloc`, set here), so that its objects count as well.
`python -m tests.soak --help`.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

import torchrlopt
from tests.e2e.models import Branches, ConvNorm, assert_right

WARM_UP = 0.25  # of the time: allocators, torch's caches and the agent fill up
NUM_IN_TURN = 10  # consecutive rounds with one backend
MIN_ROUNDS = 100  # of each backend after the warm-up: runtimes and the agent are loaded in the first dozens
MAX_GROWTH_MB = 30.0
"""How much more ours may leak than torch.compile itself, over the run."""

MODELS: tuple[tuple[Callable[[], nn.Module], tuple[int, ...]], ...] = (
    (Branches, (5, 16)),
    (ConvNorm, (2, 3, 9, 9)),
    (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), (3, 16)),
    (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    (lambda: nn.LSTM(8, 8, batch_first=True), (2, 5, 8)),
)
"""Models, and the shapes of their inputs."""


class Held(NamedTuple):
    """Resources that the process holds at one moment."""

    megabytes: float
    threads: int
    files: int


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h, summed over all arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def held() -> Held:
    """Current resources of this process, after garbage collection."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _MallocInfo
    info = libc.mallinfo2()
    threads, files = (len(os.listdir(f"/proc/self/{name}")) for name in ("task", "fd"))
    in_use = info.uordblks + info.hblkhd  # on the heaps, and in blocks that were mapped for themselves
    return Held(in_use / 2**20, threads, files)


WAYS: tuple[Callable[[nn.Module], Any], ...] = (
    lambda model: [p.mul_(1.1) for p in model.parameters()],
    lambda model: model.load_state_dict({name: value * 0.9 for name, value in model.state_dict().items()}),
    lambda model: [setattr(p, "data", p.data * 1.2) for p in model.parameters()],
    lambda model: None,
)
"""How users change weights."""


def compare(model: nn.Module, run: Callable[..., Any], x: torch.Tensor) -> None:
    """Raise AssertionError if `run` and the model give different results."""
    with torch.no_grad():
        assert_right(run(x), model(x), copy.deepcopy(model).double()(x.double()))


def one_round(draw: random.Random, is_plain: bool) -> None:
    """One model from its first call until it is discarded.

    Args:
        draw: source of all random choices of the round.
        is_plain: use `aot_eager` instead of ours.
    """
    make, shape = draw.choice(MODELS)
    model = make().eval()
    options = {
        "searcher": draw.choice(["agent", "greedy", "none"]),
        "executor": draw.choice(["default", "eager", "onnxruntime", "openvino"]),
        "weights": draw.choice(["check", "live"]),
        "cache": draw.random() < 0.5,
        "measure": draw.random() < 0.3,
        "measure_ms": 20.0,
        "budget_ms": 30.0,
        "min_gain": -10.0,
    }
    x = torch.randn(shape)
    fast: Callable[..., Any]
    if is_plain:
        fast = torch.compile(model, backend="aot_eager")
    elif draw.random() < 0.5:
        fast = torchrlopt.optimise(model, x, **options)
    else:
        fast = torch.compile(model, backend="rlopt", options=options)
    compare(model, fast, x)
    with torch.no_grad():
        draw.choice(WAYS)(model)
    compare(model, fast, x)
    compare(model, fast, torch.randn(shape[0] + 1, *shape[1:]))
    torch._dynamo.reset()


def main(
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 8.0,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
) -> None:
    """Compile, call, change and discard models; fails if a result is wrong or resources accumulate.

    Example: python -m tests.soak --minutes 8
    """
    console = Console()
    draw = random.Random(seed)
    torch.manual_seed(seed)
    taken: list[tuple[float, Held]] = []
    grown: dict[str, list[float]] = {"ours": [], "aot_eager": []}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        os.environ["TORCHRLOPT_CACHE_DIR"] = folder
        bar = progress.add_task("soaking", total=minutes * 60)
        before = held()
        for turn in itertools.count():
            who = "aot_eager" if turn % 2 else "ours"
            for _ in range(NUM_IN_TURN):
                one_round(draw, is_plain=who == "aot_eager")
                progress.update(bar, completed=time.monotonic() - start)
            # The last compilation of a turn is released only by the next one; make that the same for both.
            one_round(draw, is_plain=True)
            after, part = held(), (time.monotonic() - start) / (minutes * 60)
            if part >= WARM_UP:
                grown[who].append(after.megabytes - before.megabytes)
            taken.append((part, after))
            before = after
            if part >= 1 and who == "aot_eager":
                break
    early = [each for part, each in taken if WARM_UP <= part < 0.5]
    late = [each for part, each in taken if part >= 0.75]
    if not early or NUM_IN_TURN * min(map(len, grown.values())) < MIN_ROUNDS:
        console.print(f"{len(taken) * NUM_IN_TURN} rounds are too few to see whether something piles up")
        raise typer.Exit(2)
    table = Table(title=f"{len(taken) * NUM_IN_TURN} rounds, seed {seed}")
    for title in ("", "second quarter", "last quarter"):
        table.add_column(title, justify="right" if title else "left")
    piled = False
    for at, name in enumerate(Held._fields):
        old, new = (statistics.median(each[at] for each in part) for part in (early, late))
        table.add_row(name, f"{old:.1f}", f"{new:.1f}")
        piled = piled or (name in ("threads", "files") and new > old)
    console.print(table)
    ours, plain = (statistics.fmean(each) for each in grown.values())
    console.print(f"{NUM_IN_TURN} rounds leave {ours:.2f} MB, with aot_eager {plain:.2f} MB")
    piled = piled or (ours - plain) * len(grown["ours"]) > MAX_GROWTH_MB
    console.print("something piles up" if piled else "nothing piles up beyond torch.compile's own")
    raise typer.Exit(1 if piled else 0)


if __name__ == "__main__":
    if os.environ.get("PYTHONMALLOC") != "malloc":
        os.environ["PYTHONMALLOC"] = "malloc"  # read when Python starts
        os.execv(sys.executable, sys.orig_argv)
    typer.run(main)
