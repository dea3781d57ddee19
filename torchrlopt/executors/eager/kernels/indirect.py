"""Convolutions, products and pools in float32 on the CPU by the kernels of `csrc/kernels`.

oneDNN's packed convolution costs 24 to 27 us a call before it computes anything, and its linear 14; these
cost 2. Where a convolution is large, both come near what the processor can do. Ours apply bias, a summand and
an activation before they write, treat NaN and infinities as ATen does, read images whose pixels lie apart,
such as some channels of a larger one, and write into such.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchrlopt import _C
from torchrlopt.executors.eager.kernels.epilogues import Epilogue
from torchrlopt.executors.eager.kernels.sites import Site
from torchrlopt.executors.lowering.fx_values import shape_key, static_shape, tensor_of

# Fewer leave most of a vector unused.
_MIN_CHANNELS = 8
# Beyond this oneDNN's linear is as quick. On 2 cores of an AMD EPYC, 2 threads, microseconds, the quicker of
# ATen and oneDNN, and ours: 1 x 960 x 240 19 and 8, 32 x 256 x 256 38 and 26, 16 x 512 x 512 58 and 53,
# 128 x 768 x 768 674 and 690.
_MAX_PRODUCT_FLOP = 2.0e7
_LARGE_WEIGHT = 1 << 17

POOLS = ("max", "mean", "mean of inside")
"""In the order of `Pool` in csrc/kernels/convolution.h."""

# In the order of `Activation` in csrc/kernels/convolution.h.
_ACTIVATIONS = (
    "none", "relu", "hardtanh", "leaky_relu", "hardswish", "hardsigmoid", "sigmoid", "swish",
)  # fmt: skip


@functools.cache
def kernels() -> _C.ImageKernels | None:
    """The kernels; None where the processor, the compiler or this PyTorch gives none."""
    if not _C.kernel_instructions():
        return None
    example = torch.empty(1)
    try:
        return _C.ImageKernels(example, example._cdata)
    except ValueError:
        return None


def pack(weight: torch.Tensor, bias: torch.Tensor | None, groups: int) -> torch.Tensor:
    """Bias and weight as the kernels read them.

    Args:
        weight: [out, in / groups, height, width]; of a product [out, in].
        bias: [out]; None for zeros.
        groups: 1, or as many as there are channels.
    """
    ours = kernels()
    assert ours is not None
    weight = _plain(weight).contiguous()
    bias = None if bias is None else _plain(bias).contiguous()
    outputs, inputs, *window = weight.shape  # the product of nothing is one
    sizes = (outputs, inputs, math.prod(window), groups > 1)
    packed = torch.empty(_C.packed_convolution_size(*sizes))
    ours.pack(weight, bias, *sizes, packed)
    return packed


pack.is_pure = True  # type: ignore[attr-defined]  # see `fx_values.is_pure`


def convolve(
    x: torch.Tensor,
    packed: torch.Tensor,
    summand: torch.Tensor | None,
    numbers: tuple[float, ...],
    room: torch.Tensor | None = None,
    first_channel: int = 0,
) -> torch.Tensor:
    """`activation(conv(x) + bias + summand)`, in channels_last.

    Args:
        x: [batch, channels, height, width], quickest where a pixel's channels are next to each other.
        packed: what `pack` gave.
        summand: as large as the result.
        numbers: out channels, kernel, stride, padding and dilation (two each), whether it is depthwise, the
            number of the activation, and two numbers of it.
        room: an image into some of whose channels the result is written; it is what is returned then.
        first_channel: of these.
    """
    ours = kernels()
    assert ours is not None
    result = _run(ours.convolve, x, packed, summand, numbers, room, first_channel)
    if result is None:
        summand = None if summand is None else _image(summand)
        result = _run(ours.convolve, _image(x), packed, summand, numbers, room, first_channel)
    assert result is not None
    return result


def pool(
    x: torch.Tensor, numbers: tuple[int, ...], room: torch.Tensor | None = None, first_channel: int = 0
) -> torch.Tensor:
    """A pool, in channels_last.

    Args:
        x: as for `convolve`.
        numbers: as for `convolve` up to the dilation, then whether a window may end outside, and the number
            of the kind (`POOLS`).
        room: as for `convolve`.
        first_channel: as for `convolve`.
    """
    ours = kernels()
    assert ours is not None
    result = _run(ours.pool, x, numbers, room, first_channel)
    if result is None:
        result = _run(ours.pool, _image(x), numbers, room, first_channel)
    assert result is not None
    return result


def linear(x: torch.Tensor, packed: torch.Tensor, numbers: tuple[float, ...]) -> torch.Tensor:
    """`activation(x @ weight.t() + bias)`, contiguous.

    Args:
        x: [..., in].
        packed: what `pack` gave.
        numbers: out features, the number of the activation, and two numbers of it.
    """
    ours = kernels()
    assert ours is not None
    result = _run(ours.linear, x, packed, numbers)
    if result is None:
        result = _run(ours.linear, _plain(x).contiguous(), packed, numbers)
    assert result is not None
    return result


def room_for(sizes: tuple[int, int, int, int]) -> torch.Tensor:
    """An image in channels_last for results that others write."""
    return torch.empty(sizes, memory_format=torch.channels_last)


def fill(x: torch.Tensor, room: torch.Tensor, first_channel: int) -> torch.Tensor:
    """Copy an image into some channels of another, which is returned."""
    room[:, first_channel : first_channel + x.shape[1]].copy_(x)
    return room


def joined(room: torch.Tensor, *written: torch.Tensor) -> torch.Tensor:
    """The image, once all that is part of it has been written."""
    return room


# See `sharing.gives_new_memory`.
convolve.gives_new_memory = pool.gives_new_memory = linear.gives_new_memory = True  # type: ignore[attr-defined]


def _run(call: Callable[..., torch.Tensor | None], *args: Any) -> torch.Tensor | None:
    """Call a kernel, such that PyTorch's profiler knows of it."""
    if torch._C._autograd._profiler_enabled():
        with torch.profiler.record_function(f"torchrlopt::{call.__name__}"):
            return call(*args)
    return call(*args)


def _plain(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself in place of a parameter."""
    return x if type(x) is torch.Tensor else x.detach().as_subclass(torch.Tensor)


def _image(x: torch.Tensor) -> torch.Tensor:
    return _plain(x).contiguous(memory_format=torch.channels_last)


def are_for(value: torch.Tensor | None) -> bool:
    """Whether there are kernels for the dtype and device of a tensor."""
    is_plain = value is not None and value.dtype is torch.float32 and value.device.type == "cpu"
    return is_plain and kernels() is not None


def takes(site: Site) -> bool:
    """Whether there is a kernel for a convolution."""
    shape = static_shape(site.weight)
    if (
        shape is None
        or len(shape) != 4
        or site.output_padding is not None
        or not are_for(tensor_of(site.node))
    ):
        return False
    outputs, inputs = shape[0], shape[1] * site.groups
    if max(outputs, inputs) > _C.MOST_KERNEL_CHANNELS:
        return False
    if site.groups > 1:
        return site.groups == inputs == outputs >= _MIN_CHANNELS
    return outputs >= _MIN_CHANNELS and (inputs >= _MIN_CHANNELS or _reads_any_strides(site, inputs))


def _reads_any_strides(site: Site, inputs: int) -> bool:
    """Whether the kernel makes a copy of its own, with all that lies under a row of the window together."""
    num_taps = math.prod((static_shape(site.weight) or ())[2:])
    return inputs < _MIN_CHANNELS and num_taps > 1 and site.dilation[1] == 1 and site.groups == 1


def needs_channels_last(call: fx.Node) -> bool:
    """Whether a call of `convolve` reads its input in channels_last only."""
    numbers: Any = call.args[3]
    shape = shape_key(call.args[0])
    is_small = shape is not None and isinstance(shape[1], int) and shape[1] < _MIN_CHANNELS
    return not (is_small and numbers[1] * numbers[2] > 1 and numbers[8] == 1 and not numbers[9])


def takes_product(rows: int | None, in_features: int, out_features: int) -> bool:
    """Whether a product of float32 is computed quicker than by oneDNN or ATen; rows: None if not known."""
    if in_features > _C.MOST_KERNEL_CHANNELS:
        return False
    if rows is None:
        return in_features * out_features < _LARGE_WEIGHT
    return 2.0 * rows * in_features * out_features < _MAX_PRODUCT_FLOP


def has_activation(epilogue: Epilogue) -> bool:
    """Whether the kernels have it."""
    return epilogue.attr in _ACTIVATIONS


def numbers_of(site: Site, epilogue: Epilogue) -> tuple[float, ...]:
    """The last argument of `convolve`."""
    shape = static_shape(site.weight)
    assert shape is not None
    window = (*shape[2:], *site.stride, *site.padding, *site.dilation)
    return (shape[0], *window, int(site.groups > 1), *numbers_of_activation(epilogue))


def numbers_of_activation(epilogue: Epilogue) -> tuple[int, float, float]:
    """Its number, and its two numbers."""
    low, high = (*epilogue.scalars, 0.0, 0.0)[:2]
    return (_ACTIVATIONS.index(epilogue.attr), low, high)


def activation_of(numbers: Any) -> str:
    """The activation in the last argument of `convolve` or `linear`, by oneDNN's name."""
    return _ACTIVATIONS[numbers[-3]]
