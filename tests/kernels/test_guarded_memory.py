"""Kernels read nothing beside their operands: next to these are pages that nobody may touch."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import NONE

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

ROOT = Path(__file__).parents[2]

_HELD: list[mmap.mmap] = []  # until the process ends


def beside_a_guard(x: Tensor, is_first: bool) -> Tensor:
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


def run_all(dtype: torch.dtype, is_first: bool) -> None:
    """Convolutions, pools, products and attention, with operands beside guard pages."""

    def guarded(x: Tensor) -> Tensor:
        return beside_a_guard(x, is_first)

    def image(channels: int, width: int, layout: torch.memory_format) -> Tensor:
        return guarded(torch.randn(1, channels, 7, width).to(dtype).contiguous(memory_format=layout))

    def window(outputs: int, *sizes: int) -> indirect.Window:
        return indirect.Window(outputs, *((n, n) for n in sizes), (1, 1))

    torch.set_num_threads(1)
    for channels in (1, 2, 3, 5, 8, 11, 17, 32, 40):
        layouts = [torch.channels_last, *([torch.contiguous_format] if channels < 8 else [])]
        packed = guarded(indirect.pack(torch.randn(24, channels, 3, 3).to(dtype), None, 1))
        for width, stride, padding, layout in itertools.product((3, 5, 16, 31), (1, 2, 3), (0, 1), layouts):
            numbers = window(24, 3, stride, padding).of_convolution(1, NONE)
            indirect.convolve(image(channels, width, layout), packed, None, numbers)
    cases = (8, 1), (13, 1), (16, 1), (24, 1), (31, 1), (40, 1), (8, 4), (24, 2), (40, 8), (32, 16)
    for (channels, inputs), kernel in itertools.product(cases, (3, 5, 7)):
        weight, groups = torch.randn(channels, inputs, kernel, kernel).to(dtype), channels // inputs
        packed = guarded(indirect.pack(weight, None, groups))
        for width, stride, padding in itertools.product((7, 9, 14, 30), (1, 2), (0, kernel // 2)):
            x, own = image(channels, width, torch.channels_last), window(channels, kernel, stride, padding)
            numbers = own.of_convolution(groups, NONE)
            y = indirect.convolve(x, packed, None, numbers)
            indirect.convolve(x, packed, guarded(y), numbers)
            indirect.pool(x, own.of_pool("max"))
    for rows, size in itertools.product((8, 29, 64), (2, 6, 64)):
        q, v = (guarded(torch.randn(1, 2, rows, size + more).to(dtype)) for more in (0, 3))
        mask = guarded(torch.randn(1, 1, rows, rows).to(dtype))
        if _C.kernel_takes_attention(rows, rows, size, size + 3, str(dtype).removeprefix("torch.")):
            assert indirect.attend(q, q, v, mask, False, 1.0, True) is not None
        packed = guarded(indirect.pack(torch.randn(33, size).to(dtype), None, 1))
        indirect.linear(q, packed, indirect.numbers_of_product(33, NONE))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_beside_an_operand_is_read(dtype: str, is_first: bool) -> None:
    if indirect.kernels(getattr(torch, dtype)) is None:
        pytest.skip("no kernels of this type for this processor")
    code = (
        "import torch\n"
        "from tests.kernels.test_guarded_memory import run_all\n"
        f"run_all(torch.{dtype}, {is_first})\n"
        "print('read nothing else')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "read nothing else", (done.returncode, done.stderr[-2000:])
