"""Registers the kernels of `csrc/kernels` as operators: `torch.ops.torchrlopt.conv` and so on.

Images are [batch, channels, height, width] and results are in channels_last. There are four paddings: top,
left, bottom, right; negative if windows start inside the image. `dtype` is that of the products, for which
the weight is packed (the operand's by default), and `out_dtype` the result's (that of the products by
default). docs/kernels.md describes the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.library import DirectForm, define, straight
from torchrlopt.executors.lowering.fx_values import arguments
from torchrlopt.torch_private.operators import OpOverload

_WINDOW = "int[] kernel, int[] stride, int[] padding, int[] dilation"
_ACTIVATION = "str activation='none', float[] scalars=[]"
_TYPES = "ScalarType? dtype=None, ScalarType? out_dtype=None"
_CONVOLUTION = f"int out_channels, {_WINDOW}, int groups=1, int method=0, {_ACTIVATION}, {_TYPES}"
_POOL = f"{_WINDOW}, bool ceil_mode, str kind, ScalarType? out_dtype=None"
_ROOM = "Tensor(a!) room, int first_channel"


def _convolution(
    x: Any,
    packed: Any,
    summand: Any,
    out_channels: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    method: int = indirect.SUMS,
    activation: str = "none",
    scalars: Sequence[float] = (),
    *types: torch.dtype | None,
) -> DirectForm:
    window = indirect.Window(out_channels, kernel, stride, padding[:2], dilation, padding[2:])
    numbers = window.of_convolution(groups, indirect.epilogue_of(activation, scalars), method, *types)
    return indirect.convolve, (x, packed, summand, numbers)


def _pool(
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    kind: str,
    out_dtype: torch.dtype | None = None,
) -> DirectForm:
    # The number of channels is the image's.
    window = indirect.Window(1, kernel, stride, padding[:2], dilation, padding[2:])
    return indirect.pool, (x, window.of_pool(kind, ceil_mode, out_dtype))


def _linear(
    x: Any,
    packed: Any,
    out_features: int,
    method: int = indirect.SUMS,
    activation: str = "none",
    scalars: Sequence[float] = (),
    *types: torch.dtype | None,
) -> DirectForm:
    epilogue = indirect.epilogue_of(activation, scalars)
    return indirect.linear, (x, packed, indirect.numbers_of_product(out_features, epilogue, method, *types))


# ---- results for fake tensors


def _image(
    like: torch.Tensor, channels: int, height: Any, width: Any, dtype: torch.dtype | None = None
) -> torch.Tensor:
    sizes = (like.shape[0], channels, height, width)
    dtype = like.dtype if dtype is None else dtype
    return torch.empty(sizes, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _sides(x: torch.Tensor, numbers: Sequence[Any], is_ceiled: bool = False) -> list[Any]:
    """Height and width of the result."""
    found = []
    for size, kernel, stride, before, dilation, behind in zip(
        x.shape[2:], numbers[1:3], numbers[3:5], numbers[5:7], numbers[7:9], numbers[9:11], strict=True
    ):
        span = size + before + behind - dilation * (kernel - 1) - 1
        count = (span + (stride - 1 if is_ceiled else 0)) // stride + 1
        if is_ceiled and (count - 1) * stride >= size + before:
            count -= 1  # the last window starts in the image or left of it
        found.append(count)
    return found


def _fake_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
    batch, heads, queries, _ = q.shape
    if rest[-1]:
        return q.new_empty((batch, heads, queries, v.shape[3]))
    return q.new_empty((batch, queries, heads, v.shape[3])).transpose(1, 2)


def _fake_pack(
    weight: torch.Tensor, bias: torch.Tensor | None, groups: int, method: int, dtype: torch.dtype
) -> torch.Tensor:
    return weight.new_empty(indirect.packed_size(weight.shape, groups, method, dtype), dtype=torch.float32)


def _fake_pack_norm(weight: Any, bias: Any, mean: torch.Tensor, var: Any, *rest: Any) -> torch.Tensor:
    return _fake_pack(mean.view(-1, 1, 1, 1), bias, mean.shape[0], indirect.SUMS, rest[1])


def _fake_pack_recurrent(weights: Sequence[torch.Tensor], cell: int, directions: int) -> torch.Tensor:
    inputs, hidden = weights[0].shape[1], weights[1].shape[1]
    return weights[0].new_empty(_C.kernel_recurrent_size(cell, inputs, hidden, directions))


def _fake_recurrent(
    x: torch.Tensor, packed: Any, first_h: Any, first_c: Any, cell: int, hidden: int, directions: int
) -> tuple[torch.Tensor, ...]:
    steps, batch, _ = x.shape
    sizes = (directions, batch, hidden)
    has_cells = cell == indirect.LSTM
    return (
        x.new_empty(steps, batch, directions * hidden),
        x.new_empty(sizes),
        x.new_empty(sizes if has_cells else 0),
    )


def _fake_conv(x: torch.Tensor, packed: Any, summand: Any, numbers: Sequence[Any], *room: Any) -> Any:
    height, width = _sides(x, numbers)
    return room[0] if room else _image(x, numbers[0], height, width, indirect.result_dtype(x, numbers))


def _fake_pool(x: torch.Tensor, numbers: Sequence[Any], *room: Any) -> Any:
    height, width = _sides(x, numbers, bool(numbers[11]))
    return room[0] if room else _image(x, x.shape[1], height, width, indirect.dtype_of(numbers[-1]))


FAKES: dict[Any, Callable[..., Any]] = {
    indirect.convolve: _fake_conv,
    indirect.pool: _fake_pool,
    indirect.linear: lambda x, packed, numbers: x.new_empty(
        (*x.shape[:-1], numbers[0]), dtype=indirect.result_dtype(x, numbers)
    ),
    indirect.shuffle: lambda x, groups: _image(x, *x.shape[1:]),
    indirect.attention: _fake_attention,
    indirect.pack: _fake_pack,
    indirect.pack_norm: _fake_pack_norm,
    indirect.pack_recurrent: _fake_pack_recurrent,
    indirect.recurrent: _fake_recurrent,
    indirect.room_for: indirect.room_for,
    indirect.fill: lambda x, room, first_channel: room,
}
"""Results of the direct forms for fake tensors: same sizes and strides, no data."""


# ---- the operators


def _conv_into(x: Any, packed: Any, summand: Any, room: Any, first_channel: int, *rest: Any) -> DirectForm:
    function, given = _convolution(x, packed, summand, *rest)
    return function, (*given, room, first_channel)


def _pool_into(x: Any, room: Any, first_channel: int, *rest: Any) -> DirectForm:
    function, given = _pool(x, *rest)
    return function, (*given, room, first_channel)


CONV = define(
    f"conv(Tensor x, Tensor packed, Tensor? summand, {_CONVOLUTION}) -> Tensor", _convolution, FAKES
)
POOL = define(f"pool(Tensor x, {_POOL}) -> Tensor", _pool, FAKES)
LINEAR = define(
    f"linear(Tensor x, Tensor packed, int out_features, int method=0, {_ACTIVATION}, {_TYPES}) -> Tensor",
    _linear,
    FAKES,
)
SHUFFLE = define("channel_shuffle(Tensor x, int groups) -> Tensor", straight(indirect.shuffle), FAKES)
ATTENTION = define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool is_causal, float scale, bool is_by_heads)"
    " -> Tensor",
    straight(indirect.attention),
    FAKES,
)
PACK = define(
    "pack(Tensor weight, Tensor? bias, int groups, int method, ScalarType dtype) -> Tensor",
    lambda *args: (indirect.pack, args),
    FAKES,
)
PACK_NORM = define(
    "pack_norm(Tensor? weight, Tensor? bias, Tensor mean, Tensor var, float eps, ScalarType dtype) -> Tensor",
    straight(indirect.pack_norm),
    FAKES,
)
PACK_RECURRENT = define(
    "pack_recurrent(Tensor[] weights, int cell, int directions) -> Tensor",
    straight(indirect.pack_recurrent),
    FAKES,
)
RECURRENT_LAYER = define(
    "recurrent_layer(Tensor x, Tensor packed, Tensor? first_h, Tensor? first_c, int cell, int hidden,"
    " int directions) -> (Tensor, Tensor, Tensor)",
    straight(indirect.recurrent),
    FAKES,
)

# Images whose channels are written by several calls, in place of a `cat`. The writers return nothing, because
# PyTorch does not functionalise operators that return the tensor they mutate.
ROOM = define(
    "concat_buffer(int[] sizes, ScalarType dtype) -> Tensor",
    straight(indirect.room_for),
    FAKES,
    key="BackendSelect",  # there is no tensor argument to dispatch on
)
COPY_INTO = define(f"copy_into(Tensor x, {_ROOM}) -> ()", straight(indirect.fill), FAKES)
CONV_INTO = define(
    f"conv_into(Tensor x, Tensor packed, Tensor? summand, {_ROOM}, {_CONVOLUTION}) -> ()", _conv_into, FAKES
)
POOL_INTO = define(f"pool_into(Tensor x, {_ROOM}, {_POOL}) -> ()", _pool_into, FAKES)

_INTO: dict[Any, tuple[OpOverload, int]] = {CONV: (CONV_INTO, 3), POOL: (POOL_INTO, 1)}
"""Operators that can write into a concat buffer: the variant that does, and the position of the buffer."""

CONVOLUTIONS = frozenset({CONV, CONV_INTO})
POOLS = frozenset({POOL, POOL_INTO})
KERNELS = CONVOLUTIONS | POOLS | {LINEAR, SHUFFLE}
"""The kernels that can be part of a sequence."""

PACKING = frozenset({PACK, PACK_NORM, PACK_RECURRENT})
WRITERS = frozenset({CONV_INTO, POOL_INTO, COPY_INTO})


def set_types(call: fx.Node, **types: torch.dtype | None) -> None:
    """Set `dtype` or `out_dtype` of a call of `conv`, `linear` or `pool`, in place."""
    call.args, call.kwargs = tuple({**arguments(call), **types}.values()), {}


def can_write(call: fx.Node) -> bool:
    """Whether a call could write its result into a concat buffer."""
    return call.target in _INTO


def write_into(call: fx.Node, room: fx.Node, first_channel: int) -> None:
    """Make a call write into a concat buffer, in place. Its `meta["val"]` still describes what is written."""
    target, at = _INTO[call.target]
    call.target, call.args = target, (*call.args[:at], room, first_channel, *call.args[at:])


def place_of(call: fx.Node) -> tuple[fx.Node, int] | None:
    """The concat buffer that a call writes into and its first channel; None if it writes into none."""
    if call.target not in WRITERS:
        return None
    named = arguments(call)
    return named["room"], named["first_channel"]
