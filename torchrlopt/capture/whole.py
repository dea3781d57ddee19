"""Keeps operators whole while AOTAutograd traces.

torch registers Python kernels that decompose interpolation into index arithmetic and gathers before any
backend sees it, and two activations into comparisons, which is many times slower than the operator itself.
Inside `whole_operators()` those kernels are removed. `F.interpolate` calls overloads that take sizes or
factors; without the Python kernels only C++ ones would be left, which take no symbolic sizes, so ours replace
them. Recurrent layers, which would be traced step by step, are calls of `torchrlopt::recurrent`
(`ops/recurrent.py`); Dynamo leaves out the modules altogether, except inside `recurrent_modules()`.

`torch.roll` of a channels_last tensor stays channels_last (on the CPU it is a concatenation), while a trace
assumes a contiguous result: the views that it then makes fail, or read other elements. A BatchNorm of a
transposed tensor is contiguous, but a trace assumes a transposed one. `REARRANGED` makes both work on
contiguous tensors, for which the trace knows the layout of the results. So does `rearranged` for a GroupNorm
of a transposed image of batch 1, which fails because a trace takes it for channels_last (`real_strides`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchrlopt.ops.recurrent import CELLS, RECURRENT
from torchrlopt.torch_private.dynamo import recurrent_modules_allowed
from torchrlopt.torch_private.modes import is_any_autocast_enabled
from torchrlopt.torch_private.operators import (
    TRACED_KEYS,
    OpOverload,
    forget_dispatch,
    overload_name,
    python_kernels,
)

_PACKETS = (
    *(f"upsample_{name}" for name in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d")),
    *(f"upsample_{name}" for name in ("trilinear3d", "bicubic2d")),
    *(f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)),
    *("hardshrink", "softshrink"),
)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _roll(x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    layout = _CHANNELS_LAST.get(x.dim())
    if not dims or layout is None or x.device.type != "cpu" or x.is_contiguous():
        return NotImplemented
    if not x.is_contiguous(memory_format=layout):
        return NotImplemented
    order = [0, *range(2, x.dim()), 1]
    moved = torch.roll(x.permute(order), shifts, [order.index(dim % x.dim()) for dim in dims])
    return moved.permute([order.index(axis) for axis in range(x.dim())])


def _batch_norm(x: torch.Tensor, *others: Any) -> Any:
    layout = _CHANNELS_LAST.get(x.dim())
    if x.device.type != "cpu" or x.is_contiguous():
        return NotImplemented
    if layout is not None and x.is_contiguous(memory_format=layout):
        return NotImplemented
    return torch.ops.aten._native_batch_norm_legit_no_training.default(x.contiguous(), *others)


def _group_norm(x: torch.Tensor, *others: Any) -> Any:
    if 1 not in x.shape or x.is_contiguous():
        return NotImplemented
    dense = x.clone(memory_format=torch.contiguous_format)
    return torch.ops.aten.native_group_norm.default(dense, *others)


REARRANGED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.roll.default: _roll,
    torch.ops.aten._native_batch_norm_legit_no_training.default: _batch_norm,
}
"""Decompositions for a trace."""


_RESHAPES = frozenset({"flatten", "reshape", "reshape_as", "unflatten", "view", "view_as"})


def rearranged(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> dict[Any, Callable[..., Any]]:
    """`REARRANGED`, and more if Dynamo's graph reshapes and no input is in channels_last.

    Without views of transposed tensors, what a trace takes for channels_last is.
    """
    images = (x for x in inputs if isinstance(x, torch.Tensor) and x.dim() in _CHANNELS_LAST)
    names = (getattr(node.target, "__name__", node.target) for node in gm.graph.nodes)
    if any(name in _RESHAPES for name in names) and all(x.is_contiguous() for x in images):
        return REARRANGED | {torch.ops.aten.native_group_norm.default: _group_norm}
    return REARRANGED


# The kernel table is global to the process; traces of several threads may overlap.
_lock = threading.Lock()
_num_inside = 0
_saved: dict[OpOverload, dict[Any, Callable[..., Any]]] = {}


@contextlib.contextmanager
def whole_operators() -> Iterator[None]:
    """Context in which each of these operators is traced as one. Threads may overlap and nest."""
    global _num_inside
    with _lock:
        _num_inside += 1
        if _num_inside == 1:
            _remove()
    try:
        yield
    finally:
        with _lock:
            _num_inside -= 1
            if _num_inside == 0:
                _restore()


@contextlib.contextmanager
def recurrent_modules() -> Iterator[None]:
    """Context in which Dynamo traces `nn.LSTM`, `nn.GRU` and `nn.RNN`, each as one call.

    Not under autocast, where each product of a step has its own dtype: the call would be traced step by step.
    """
    with (
        contextlib.nullcontext() if is_any_autocast_enabled() else recurrent_modules_allowed(),
        whole_operators(),
    ):
        yield


def _by_size(whole: OpOverload) -> Callable[..., torch.Tensor]:
    """Implement an overload that takes sizes or factors, by calling the one that takes both separately."""

    def resized(x: torch.Tensor, sizes: Sequence[Any] | None, *others: Any) -> torch.Tensor:
        *flags, factors = others
        if sizes is None:
            spatial = x.shape[2:]
            sizes = [torch.sym_int(size * factor) for size, factor in zip(spatial, factors, strict=True)]
        scales = factors or [None] * len(sizes)
        return whole(x, sizes, *flags, *scales)  # type: ignore[no-any-return]

    return resized


def _recurrent(cell: str, steps: Callable[..., Any]) -> Callable[..., Any]:
    """Implement PyTorch's operator of a cell by ours; by its steps for gradients, dropout and autocast."""

    def layers(
        x: torch.Tensor,
        states: Any,
        weights: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        given = list(states) if cell == "lstm" else [states]
        has_gradients = torch.is_grad_enabled() and any(each.requires_grad for each in (x, *given, *weights))
        if has_gradients or (train and dropout) or is_any_autocast_enabled():
            return steps(
                x, states, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first
            )
        made = RECURRENT(x, given, weights, cell, has_biases, num_layers, bidirectional, batch_first)
        return made if cell == "lstm" else made[:2]

    return layers


def _overloads() -> Iterator[OpOverload]:
    for name in _PACKETS:
        packet = getattr(torch.ops.aten, name, None)
        for overload in ("default", "vec"):
            found = getattr(packet, overload, None)
            if isinstance(found, OpOverload):
                yield found


def _remove() -> None:
    # On its first call torch caches which operators have decomposition kernels, and later exports fail where
    # an operator of their tables is missing there.
    torch.export.default_decompositions()
    for operation in _overloads():
        _saved[operation] = {
            key: python_kernels(operation).pop(key) for key in TRACED_KEYS if key in python_kernels(operation)
        }
        if overload_name(operation) == "vec":
            kernel = _by_size(operation.overloadpacket.default)
            python_kernels(operation).update(dict.fromkeys(TRACED_KEYS, kernel))
        forget_dispatch(operation)
    for cell, operation in CELLS.items():
        kernels = python_kernels(operation)
        _saved[operation] = {key: kernels[key] for key in TRACED_KEYS if key in kernels}
        kernels.update({key: _recurrent(cell, steps) for key, steps in _saved[operation].items()})
        forget_dispatch(operation)


def _restore() -> None:
    for operation, kernels in _saved.items():
        for key in TRACED_KEYS:
            python_kernels(operation).pop(key, None)
        python_kernels(operation).update(kernels)
        forget_dispatch(operation)
    _saved.clear()
