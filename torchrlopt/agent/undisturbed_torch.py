"""Running our networks inside somebody else's torch: modes off, one thread, and all as it was afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def undisturbed_torch(num_threads: int = 1) -> Iterator[None]:
    """Plain float32 CPU tensors without gradients, whatever surrounds the call.

    A backend of `torch.compile` is called under fake tensors, with autocast or a default device perhaps; its
    thread count is the user's. Everything is restored, also after an exception.

    Args:
        num_threads: for operators inside; small graphs gain nothing from more than one.
    """
    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch.autocast("cpu", enabled=False),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
    ):
        torch.set_num_threads(num_threads)
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
