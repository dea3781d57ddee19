"""Running our networks inside somebody else's torch: modes off, one thread, unseen by other threads.

Number of threads, default dtype and random state of torch belong to the process. So none of them is set, not
even for a while: a thread that is born at that moment would keep what it finds. Networks name their dtype,
draw from generators of their own, and limit the threads of the calling thread alone.
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
    """Plain CPU tensors without gradients, computed in one thread, whatever surrounds the call.

    A backend of `torch.compile` is called under fake tensors, with autocast or a default device perhaps; its
    thread count is the user's. Everything is restored, also after an exception.
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
    """Operators that this thread calls run in it alone: small graphs gain nothing from more threads.

    `torch.set_num_threads` would be seen by every thread that is born meanwhile; OpenMP and MKL count for
    each calling thread. Where torch was built with other libraries, nothing is limited.
    """
    limits = _limits()
    torch.get_num_threads()  # makes torch set this thread up, which it would do later and undo ours
    before = [(limit, limit(1)) for limit in limits]
    try:
        yield
    finally:
        for limit, count in before:
            limit(count)


@functools.cache
def _limits() -> tuple[Callable[[int], int], ...]:
    """Functions that set a number of threads of the calling thread, and return what it was.

    They are asked from the library that computes, which finds them in those that it was linked with: another
    OpenMP in the same process would be the wrong one.
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
    """What networks that are being made may still take.

    Attributes:
        tensors: their number.
        elements: of all tensors together.
    """

    tensors: int
    elements: int

    def take(self, tensor: torch.Tensor) -> None:
        """Count a new tensor, before anything is written to it: until then it takes no memory.

        Raises:
            ValueError: there is no room for it.
        """
        self.tensors -= 1
        self.elements -= tensor.numel()
        if self.tensors < 0 or self.elements < 0:
            raise ValueError("the networks are larger than their weights")


class _OwnWeights(TorchFunctionMode):
    """Fills in what would be torch's own: the dtype of a new tensor, the generator of a draw."""

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
    """`undisturbed_torch`, where modules are made of float32 and draw their first weights by a seed.

    Args:
        seed: of the weights.
        most: what they may take, of sizes that are not trusted; ValueError is raised beyond it.
    """
    generator = torch.Generator().manual_seed(seed)
    with undisturbed_torch(), with_torch_function(), _OwnWeights(generator, most):
        yield
