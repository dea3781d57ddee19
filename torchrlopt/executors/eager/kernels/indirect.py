"""Convolutions in float32 on the CPU by the kernels of `csrc/kernels`: dense and depthwise ones.

oneDNN's packed convolution costs 24 to 27 us a call before it computes anything, these 2; where a convolution
is large, both come near what the processor can do. They apply bias, a summand and an activation before they
write, treat NaN and infinities as ATen does, and read an image whose pixels lie apart, such as some channels
of a larger one.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from torchrlopt import _C
from torchrlopt.executors.eager.kernels.epilogues import Epilogue
from torchrlopt.executors.eager.kernels.sites import Site
from torchrlopt.executors.lowering.fx_values import static_shape, tensor_of

# Fewer channels leave most of a pixel's reads unused.
_MIN_CHANNELS = 8
# A depthwise kernel computes a whole vector of channels at least.
_MIN_DEPTHWISE_CHANNELS = 16

# In the order of `Activation` in csrc/kernels/convolution.h.
_ACTIVATIONS = (
    "none", "relu", "hardtanh", "leaky_relu", "hardswish", "hardsigmoid", "sigmoid", "swish",
)  # fmt: skip


# Where its number stands among the last argument of `convolve`.
_ACTIVATION = 10


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
        weight: [out, in / groups, height, width].
        bias: [out]; None for zeros.
        groups: 1, or as many as there are channels.
    """
    ours = kernels()
    assert ours is not None
    weight = _plain(weight).contiguous()
    bias = None if bias is None else _plain(bias).contiguous()
    outputs, inputs, *window = weight.shape
    sizes = (outputs, inputs, math.prod(window), groups > 1)
    packed = torch.empty(_C.packed_convolution_size(*sizes))
    ours.pack(weight, bias, *sizes, packed)
    return packed


pack.is_pure = True  # type: ignore[attr-defined]  # see `fx_values.is_pure`


def convolve(
    x: torch.Tensor, packed: torch.Tensor, summand: torch.Tensor | None, numbers: tuple[float, ...]
) -> torch.Tensor:
    """`activation(conv(x) + bias + summand)`, in channels_last.

    Args:
        x: [batch, channels, height, width], quickest where a pixel's channels are next to each other.
        packed: what `pack` gave.
        summand: as large as the result.
        numbers: out channels, kernel, stride, padding and dilation (two each), whether it is depthwise, the
            number of the activation, and two numbers of it.
    """
    ours = kernels()
    assert ours is not None
    result = ours.convolve(x, packed, summand, numbers)
    if result is None:
        result = ours.convolve(_image(x), packed, None if summand is None else _image(summand), numbers)
    assert result is not None
    return result


convolve.gives_new_memory = True  # type: ignore[attr-defined]  # see `sharing.gives_new_memory`


def _plain(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself in place of a parameter."""
    return x if type(x) is torch.Tensor else x.detach().as_subclass(torch.Tensor)


def _image(x: torch.Tensor) -> torch.Tensor:
    return _plain(x).contiguous(memory_format=torch.channels_last)


def takes(site: Site) -> bool:
    """Whether there is a kernel for a convolution."""
    value, shape = tensor_of(site.node), static_shape(site.weight)
    if value is None or value.dtype is not torch.float32 or value.device.type != "cpu" or shape is None:
        return False
    if site.output_padding is not None or len(shape) != 4 or kernels() is None:
        return False
    outputs, inputs = shape[0], shape[1] * site.groups
    if not max(outputs, inputs) <= _C.MOST_KERNEL_CHANNELS:
        return False
    if site.groups == 1:
        return inputs >= _MIN_CHANNELS and outputs >= _MIN_CHANNELS
    return site.groups == inputs == outputs >= _MIN_DEPTHWISE_CHANNELS


def has_activation(epilogue: Epilogue) -> bool:
    """Whether the kernels have it."""
    return epilogue.attr in _ACTIVATIONS


def numbers_of(site: Site, epilogue: Epilogue) -> tuple[float, ...]:
    """The last argument of `convolve`."""
    shape = static_shape(site.weight)
    assert shape is not None
    window = (*shape[2:], *site.stride, *site.padding, *site.dilation)
    low, high = (*epilogue.scalars, 0.0, 0.0)[:2]
    return (shape[0], *window, int(site.groups > 1), _ACTIVATIONS.index(epilogue.attr), low, high)


def activation_of(numbers: Any) -> str:
    """The activation in the last argument of `convolve`, by oneDNN's name."""
    return _ACTIVATIONS[numbers[_ACTIVATION]]
