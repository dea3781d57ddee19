"""Memory with guard pages: a kernel that reads or writes out of bounds crashes the process."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]

_HELD: list[mmap.mmap] = []  # until the process ends

_PREAMBLE = """
import functools, torch
from tests.kernels import guarded_memory
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import Epilogue

at_the_end = functools.partial(guarded_memory.at_an_end, is_first={is_first})
torch.set_num_threads(1)
"""


def at_an_end(x: Tensor, is_first: bool) -> Tensor:
    """A copy with the same strides, right behind a page that nobody may touch, or right before one."""
    size = x.numel() * x.element_size()
    pages = -(-size // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    end = (pages + 1) * mmap.PAGESIZE
    for guard in (start, start + end):
        assert protect(guard, mmap.PAGESIZE, 0) == 0
    offset = mmap.PAGESIZE if is_first else end - size
    flat = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=offset)
    _HELD.append(memory)
    return flat.as_strided(x.shape, x.stride()).copy_(x)


def check(program: str, side: str) -> None:
    """Run a program in a process of its own, which ends well; operands are `at_the_end(x)`.

    Args:
        program: its text.
        side: "before" or "behind", where the page is that nobody may touch.
    """
    code = f"{_PREAMBLE.format(is_first=side == 'before')}{program}\nprint('read nothing else')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "read nothing else", (done.returncode, done.stderr[-2000:])
