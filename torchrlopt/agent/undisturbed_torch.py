"""Runs networks isolated from the caller's torch state: modes off, one thread, no global effects.

The thread count, default dtype and random state of torch are process-wide. None of them is changed, not even
temporarily, because a thread started meanwhile would inherit the change. Networks specify their dtype, use
their own generators, and limit only the threads of the calling thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchrlopt.torch_private.modes import with_torch_function, without_dispatch_modes, without_torch_function

_FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.linspace)


@contextlib.contextmanager
def undisturbed_torch() -> Iterator[None]:
    """Context manager for plain single-threaded CPU computation without gradients, in any context.

    A `torch.compile` backend is called under fake tensors, possibly with autocast or a default device, and
    with the user's thread count. Everything is restored on exit, even after an exception.
    """
    with (
        without_dispatch_modes(),
        without_torch_function(),
        torch.autocast("cpu", enabled=False),
        torch.inference_mode(False),
        torch.no_grad(),
        one_thread(),
    ):
        yield


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run operators called by this thread single-threaded: small graphs do not benefit from more.

    Every thread started meanwhile would inherit `torch.set_num_threads`; the limits of OpenMP and MKL are per
    calling thread. If torch was built with other libraries, nothing is limited.
    """
    limits = _limits()
    torch.get_num_threads()  # forces torch's lazy thread set-up, which would undo the limit
    before = [(limit, limit(1)) for limit in limits]
    try:
        yield
    finally:
        for limit, count in before:
            limit(count)


@functools.cache
def _limits() -> tuple[Callable[[int], int], ...]:
    """Return functions that set the thread count of the calling thread and return the previous one.

    They are looked up through libtorch_cpu, which resolves them in the libraries that it was linked with: the
    process may contain another OpenMP.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        get, put = library.omp_get_max_threads, library.omp_set_num_threads
    except (OSError, AttributeError):
        return ()

    def openmp(count: int) -> int:
        before = int(get())
        put(count)
        return before

    mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)
    return (openmp,) if mkl is None else (openmp, mkl)


@dataclasses.dataclass
class Room:
    """Remaining memory budget of networks under construction.

    Attributes:
        tensors: number of tensors.
        elements: total number of elements.
    """

    tensors: int
    elements: int

    def take(self, tensor: torch.Tensor) -> None:
        """Count a new tensor before it is written to: until then it takes no physical memory.

        Raises:
            ValueError: the budget is exceeded.
        """
        self.tensors -= 1
        self.elements -= tensor.numel()
        if self.tensors < 0 or self.elements < 0:
            raise ValueError("the networks are larger than their weights")


class _OwnWeights(TorchFunctionMode):
    """Replaces torch's defaults: the dtype of new tensors and the random generator."""

    def __init__(self, generator: torch.Generator, room: Room | None) -> None:
        super().__init__()
        self._generator = generator
        self._room = room

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in _FACTORIES and given.get("dtype") is None:
            given["dtype"] = torch.float32
        if "generator" in given and given["generator"] is None:
            given["generator"] = self._generator
        with without_torch_function():
            made = func(*args, **given)
        if self._room is not None and func in _FACTORIES:
            self._room.take(made)
        return made


@contextlib.contextmanager
def making_networks(seed: int = 0, most: Room | None = None) -> Iterator[None]:
    """`undisturbed_torch` for constructing modules, in float32 with seeded initial weights.

    Args:
        seed: seed of the weights.
        most: limit for untrusted sizes; ValueError is raised beyond it.
    """
    generator = torch.Generator().manual_seed(seed)
    with undisturbed_torch(), with_torch_function(), _OwnWeights(generator, most):
        yield
