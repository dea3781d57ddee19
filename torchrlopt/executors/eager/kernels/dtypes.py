"""Per-dtype properties of the kernels in `csrc/kernels`; the only such table in Python.

To add a dtype, add a row here and one in `csrc/kernels/elements.h`; docs/kernels.md lists the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KernelDtype:
    """A dtype that the kernels support.

    Attributes:
        name: its name in C++.
        heads_are_even: whether attention supports even head sizes only, because it reads pairs of numbers.
        sums_beat_onednn: whether products by sums beat oneDNN's for any number of rows (`python -m
            baselines.kernels --dtype bfloat16`: with up to 197 rows oneDNN was not faster; with 2048 it took
            0.92 to 1.03 times as long, measured with a separate script).
        min_packed_linear_flop: the work from which oneDNN's packed linear is faster than ATen's. One thread
            of bfloat16: 20 us became 15 for one row of 128 x 128, 4 became 14 for 64 x 64.
    """

    name: str
    heads_are_even: bool = False
    sums_beat_onednn: bool = False
    min_packed_linear_flop: float = 1.0e6


KERNEL_DTYPES: dict[torch.dtype, KernelDtype] = {
    torch.float32: KernelDtype("float32"),
    torch.bfloat16: KernelDtype(
        "bfloat16", heads_are_even=True, sums_beat_onednn=True, min_packed_linear_flop=16.0e3
    ),
}
