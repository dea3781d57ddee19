"""What the kernels of `csrc/kernels` have for each type of numbers: the one table of it in Python.

A type is added by a row here and by one in `csrc/kernels/elements.h`; docs/kernels.md lists what else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KernelDtype:
    """A type of numbers in images.

    Attributes:
        name: of its row in C++.
        heads_are_even: whether attention takes heads of an even size only, as it reads pairs of numbers.
        sums_beat_onednn: whether products by sums are quicker than oneDNN's for any number of rows
            (`python -m baselines.kernels --dtype bfloat16`: with up to 197 rows oneDNN was not quicker,
            with 2048 it took 0.92 to 1.03 times as long, a script of its own).
        min_packed_linear_flop: oneDNN's packed linear pays from there on, whatever the weight; None where
            that depends on the weight. One thread of bfloat16: 20 us became 15 for one row of 128 x 128, 4
            became 14 for 64 x 64.
    """

    name: str
    heads_are_even: bool = False
    sums_beat_onednn: bool = False
    min_packed_linear_flop: float | None = None


KERNEL_DTYPES: dict[torch.dtype, KernelDtype] = {
    torch.float32: KernelDtype("float32"),
    torch.bfloat16: KernelDtype(
        "bfloat16", heads_are_even=True, sums_beat_onednn=True, min_packed_linear_flop=16.0e3
    ),
}
