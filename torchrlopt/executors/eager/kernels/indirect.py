"""Calls on the CPU by the kernels of `csrc/kernels`: convolutions, products, pools.

oneDNN's packed convolution costs 24 to 27 us a call before it computes anything, and its linear 14; these
cost less than 4 (`python -m baselines.kernels`, baselines/results/cpu_kernels.csv). Where a convolution
is large, both come near what vectors can do; ours may be computed in the processor's matrix unit, or by tiles
if they are of 3 x 3. Ours apply bias, a summand and an activation before they write, also for operands that
are not finite, read images whose pixels lie apart, such as some channels of a larger one, and write into
such. What they do not do as every kernel of ATen does: a weight that is infinite may or may not give NaN at
the border of a padded image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from torchrlopt import _C
from torchrlopt.errors import LoweringError
from torchrlopt.executors.eager.kernels.dtypes import KERNEL_DTYPES
from torchrlopt.executors.eager.kernels.epilogues import (
    NONE,
    Epilogue,
    activation_of_call,
    fused_activation,
)
from torchrlopt.executors.eager.kernels.library import direct_form, recorded

POOLS = ("max", "mean", "mean of inside")
"""In the order of `Pool` in csrc/kernels/convolution.h."""

EPILOGUES = (
    "none", "relu", "hardtanh", "leaky_relu", "hardswish", "hardsigmoid", "sigmoid", "swish", "tanh",
    "gelu", "gelu tanh",
)  # fmt: skip
"""By oneDNN's names, in the order of `Activation` in csrc/kernels/convolution.h."""


# Where it stands among the numbers of `convolve`.
_METHOD = 12

SUMS, BF16X3, TILES = 0, 1, (2, 4)
"""Methods: `Method` in csrc/kernels/convolution.h."""


@dataclass(frozen=True)
class Window:
    """A kernel over an image, the last argument of whose calls is a tuple of numbers that C++ reads.

    Attributes:
        out_channels: of the result.
        kernel: height and width, as the next three.
        stride: between windows.
        padding: above and in front. Less than nothing where the first window begins inside.
        dilation: between the pixels that a window sees.
        behind: padding below and behind; None where it is the same as in front.
    """

    out_channels: int
    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    behind: Sequence[int] | None = None

    def arguments(self) -> tuple[list[int], ...]:
        """Kernel, stride, padding and dilation, as the operators take them."""
        padding = [*self.padding, *(self.padding if self.behind is None else self.behind)]
        return list(self.kernel), list(self.stride), padding, list(self.dilation)

    def of_convolution(self, groups: int, epilogue: Epilogue, method: int = SUMS) -> tuple[float, ...]:
        """The numbers for `convolve`; `method` as for `pack`."""
        return (*self._numbers(), groups, method, *numbers_of(epilogue))

    def of_pool(self, kind: str, is_ceiled: bool = False) -> tuple[int, ...]:
        """The numbers for `pool`.

        Args:
            kind: of `POOLS`.
            is_ceiled: whether the last window may end outside.
        """
        return (*self._numbers(), int(is_ceiled), POOLS.index(kind))

    def is_usual(self) -> bool:
        """Whether no number is so large that the kernels refuse it: PyTorch computes such windows."""
        return all(abs(number) <= _C.MOST_KERNEL_STEP for number in self._numbers()[1:])

    def _numbers(self) -> tuple[int, ...]:
        behind = self.padding if self.behind is None else self.behind
        return (self.out_channels, *self.kernel, *self.stride, *self.padding, *self.dilation, *behind)


@functools.cache
def kernels(dtype: torch.dtype = torch.float32) -> _C.ImageKernels | None:
    """The kernels for such images; None where the processor, the compiler or this PyTorch gives none."""
    if dtype not in KERNEL_DTYPES:
        return None
    example = torch.empty(1, dtype=dtype, device="cpu")
    try:
        return _C.ImageKernels(example)
    except ValueError:
        return None


def pack(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    groups: int,
    method: int = SUMS,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Bias and weight as the kernels read them.

    Args:
        weight: [out, in / groups, height, width]; of a product [out, in].
        bias: [out]; None for zeros.
        groups: of channels, such as `_C.kernel_takes_groups` takes.
        method: how it is computed: SUMS; BF16X3, in the matrix unit; or of TILES, outputs along their sides.
        dtype: of the images; None for the weight's.
    """
    ours = present(dtype or weight.dtype)
    weight = _plain(weight).float().contiguous()
    bias = None if bias is None else _plain(bias).float().contiguous()
    outputs, inputs, height, width = (*weight.shape, 1, 1)[:4]
    sizes = (outputs, inputs * groups, height, width, groups, method)
    packed = torch.empty(ours.packed_size(*sizes), dtype=torch.float32, device="cpu")
    ours.pack(weight, bias, *sizes, packed)
    return packed


def packed_size(shape: Sequence[int], groups: int, method: int, dtype: torch.dtype) -> int:
    """Number of floats of what `pack` gives for a weight of this shape."""
    outputs, inputs, height, width = (*shape, 1, 1)[:4]
    return present(dtype).packed_size(outputs, inputs * groups, height, width, groups, method)


def pack_norm(
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """A batch norm with fixed statistics as a depthwise convolution of one pixel, packed.

    Args:
        weight: [channels]; None for ones.
        bias: [channels]; None for zeros.
        mean: [channels].
        var: [channels].
        eps: added to the variance.
        dtype: of the image.
    """
    # As ATen computes it, in float32: a product and a sum for each element.
    scale = torch.rsqrt(var.float() + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return pack(scale.view(-1, 1, 1, 1), shift, scale.numel(), dtype=dtype)


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
        summand: as large as the result, and not where that is written: some of it may be computed twice.
        numbers: what `Window.of_convolution` gives.
        room: an image into some of whose channels the result is written; it is what is returned then.
        first_channel: of these.
    """
    ours = present(x.dtype)
    result = recorded("conv", ours.convolve, _resolved(x), packed, summand, numbers, room, first_channel)
    if result is None:
        summand = None if summand is None else _image(summand)
        result = recorded("conv", ours.convolve, _image(x), packed, summand, numbers, room, first_channel)
    return _made(result, x)


def pool(
    x: torch.Tensor, numbers: tuple[int, ...], room: torch.Tensor | None = None, first_channel: int = 0
) -> torch.Tensor:
    """A pool, in channels_last.

    Args:
        x: as for `convolve`.
        numbers: what `Window.of_pool` gives.
        room: as for `convolve`.
        first_channel: as for `convolve`.
    """
    ours = present(x.dtype)
    result = recorded("pool", ours.pool, _resolved(x), numbers, room, first_channel)
    if result is None:
        result = recorded("pool", ours.pool, _image(x), numbers, room, first_channel)
    return _made(result, x)


def linear(x: torch.Tensor, packed: torch.Tensor, numbers: tuple[float, ...]) -> torch.Tensor:
    """`activation(x @ weight.t() + bias)`, contiguous.

    Args:
        x: [..., in].
        packed: what `pack` gave.
        numbers: what `numbers_of_product` gives.
    """
    ours = present(x.dtype)
    result: torch.Tensor | None = recorded("linear", ours.linear, _resolved(x), packed, numbers)
    if result is None:  # also where there are more axes than the kernel takes
        rows = _plain(x).reshape(-1, x.shape[-1]).contiguous()
        result = _made(recorded("linear", ours.linear, rows, packed, numbers), x).view(
            *x.shape[:-1], int(numbers[0])
        )
    return result


def shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    """The channels in turns, one of each group, in channels_last: ATen's `channel_shuffle`.

    Args:
        x: as for `convolve`.
        groups: of channels, all of one size.
    """
    ours = present(x.dtype)
    result = recorded("channel_shuffle", ours.shuffle, _resolved(x), groups)
    if result is None:
        result = recorded("channel_shuffle", ours.shuffle, _image(x), groups)
    return _made(result, x)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, *numbers: float
) -> torch.Tensor | None:
    """See `attention`; None where the kernel does not read its operands as they lie."""
    mask = None if mask is None else _plain(mask)
    ours, operands = present(q.dtype), (_plain(q), _plain(k), _plain(v), mask)
    result: torch.Tensor | None = recorded("attention", ours.attend, *operands, *numbers)
    return result


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    is_by_heads: bool,
) -> torch.Tensor:
    """`softmax(q @ k.mT * scale + mask) @ v` of each head.

    Args:
        q: [batch, heads, queries, size], float32 or bfloat16, on the CPU.
        k: [batch, key heads, keys, size]; each of them is of as many heads that follow on each other.
        v: [batch, key heads, keys, value size].
        mask: added to the scores, broadcast to [batch, heads, queries, keys]; -inf where a key is not seen. A
            query that sees none gives zeros.
        is_causal: whether query i sees the keys up to i only; then there is no mask.
        scale: of the scores.
        is_by_heads: how the result lies: contiguous, or as [batch, queries, heads, value size].

    Returns:
        [batch, heads, queries, value size].
    """
    ours = attend(q, k, v, mask, is_causal, scale, is_by_heads)
    if ours is not None:
        return ours
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    result = functional.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale)
    return result.contiguous() if is_by_heads else result.transpose(1, 2).contiguous().transpose(1, 2)


def room_for(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An image in channels_last for results that others write."""
    # Whatever the user's defaults are.
    return torch.empty(sizes, dtype=dtype, device="cpu", memory_format=torch.channels_last)


def fill(x: torch.Tensor, room: torch.Tensor, first_channel: int) -> torch.Tensor:
    """Copy an image into some channels of another, which is returned."""
    room[:, first_channel : first_channel + x.shape[1]].copy_(x)
    return room


def joined(room: torch.Tensor, *written: torch.Tensor) -> torch.Tensor:
    """The image, once all that is part of it has been written."""
    return room


def present(dtype: torch.dtype) -> _C.ImageKernels:
    """The kernels for such images.

    Raises:
        LoweringError: there are none here.
    """
    ours = kernels(dtype)
    if ours is None:
        got = f"{dtype}, {_C.kernel_instructions() or 'no instructions for them'}"
        raise LoweringError("there are no kernels of our own for such tensors here", got=got, is_bug=False)
    return ours


def _made(result: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    if result is None:
        raise LoweringError("a kernel cannot read its operand", got=f"{type(x).__name__} {tuple(x.shape)}")
    return result


def _resolved(x: torch.Tensor) -> torch.Tensor:
    """The numbers themselves, where a view says that they are to be negated."""
    return x.resolve_neg() if x.is_neg() else x


def _plain(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself in place of a parameter, or of a view that negates."""
    x = _resolved(x)
    return x if type(x) is torch.Tensor else x.detach().as_subclass(torch.Tensor)


def _image(x: torch.Tensor) -> torch.Tensor:
    return _plain(x).contiguous(memory_format=torch.channels_last)


def are_for(value: torch.Tensor | None, dtype: torch.dtype | None = None) -> bool:
    """Whether there are kernels for a tensor's device and dtype, which may have to be a certain one."""
    if value is None or value.device.type != "cpu" or dtype not in (None, value.dtype):
        return False
    return kernels(value.dtype) is not None


def with_epilogue(value: fx.Node) -> tuple[fx.Node, Epilogue]:
    """`fused_activation`, without what the kernels do not have. Ours agree with ATen for every operand."""
    last, epilogue = fused_activation(value, is_finite=True)
    return (last, epilogue) if _is_had(epilogue) else (value, NONE)


def activation_at(node: fx.Node) -> Epilogue | None:
    """The activation that a call is, if it is one that the kernels have."""
    epilogue = activation_of_call(node)
    return epilogue if epilogue is not None and _is_had(epilogue) else None


def _is_had(epilogue: Epilogue) -> bool:
    return _name_of(epilogue) in EPILOGUES and all(map(math.isfinite, epilogue.scalars))


def _name_of(epilogue: Epilogue) -> str:
    return "gelu tanh" if epilogue.attr == "gelu" and epilogue.algorithm == "tanh" else epilogue.attr


def numbers_of(epilogue: Epilogue) -> tuple[int, float, float]:
    """The number of an activation of `EPILOGUES`, and two numbers that it may have."""
    low, high = (*epilogue.scalars, 0.0, 0.0)[:2]
    return (EPILOGUES.index(_name_of(epilogue)), low, high)


def numbers_of_product(out_features: int, epilogue: Epilogue, method: int = SUMS) -> tuple[float, ...]:
    """The numbers for `linear`; `method` as for `pack`."""
    return (out_features, method, *numbers_of(epilogue))


def arguments_of(epilogue: Epilogue) -> tuple[str, list[float]]:
    """An activation of `EPILOGUES` and the numbers that it may have, as the operators take them."""
    return _name_of(epilogue), list(epilogue.scalars)


def numbers_in(call: fx.Node) -> tuple[Any, ...]:
    """The numbers of a call of `conv` or `linear`, as an operator or in its direct form."""
    function, args = direct_form(call)
    numbers: tuple[Any, ...] = args[2 if function is linear else 3]
    return numbers


def activation_in(call: fx.Node) -> str:
    """The activation of a call of `conv` or `linear`, by its name in `EPILOGUES`."""
    return EPILOGUES[numbers_in(call)[-3]]


def method_of(call: fx.Node) -> int:
    """How a call of `conv` or `linear` is computed."""
    numbers = numbers_in(call)
    return int(numbers[1 if len(numbers) < _METHOD else _METHOD])
