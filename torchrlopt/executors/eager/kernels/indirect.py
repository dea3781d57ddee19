"""CPU calls of the kernels in `csrc/kernels`: convolutions, products, pools.

A call of oneDNN's packed convolution costs 24 to 27 us before it computes anything, and its linear 14; ours
cost less than 4 (`python -m baselines.kernels`, baselines/results/cpu_kernels.csv). For large convolutions
both come close to the peak of the vector units; ours can use the processor's matrix unit, or Winograd tiles
for 3 x 3 kernels. Ours apply bias, a summand and an activation before they write, even for operands that are
not finite. They read images with gaps between pixels, such as some channels of a larger image, and write into
such images. One difference from ATen's kernels: an infinite weight may or may not give NaN at the border of a
padded image.
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
"""oneDNN's names, in the order of `Activation` in csrc/kernels/convolution.h."""


LSTM = 0
"""Its number among `ops.recurrent.CELLS`, which have the order of `Cell` in csrc/kernels/recurrent.h."""

# Position of the method among the numbers of `convolve`, and of the activation from the end of those of both.
_METHOD, _ACTIVATION = 12, -5

_ELEMENTS = tuple(getattr(torch, name) for name in _C.KERNEL_ELEMENTS)

SUMS, BF16X3, TILES, INT8, BF16X2, BF16 = 0, 1, (2, 4), 8, 9, 10
"""Methods: `Method` in csrc/kernels/convolution.h."""

IN_UNIT = (BF16X3, BF16X2, BF16)
"""Those that use the processor's matrix unit."""


@dataclass(frozen=True)
class Window:
    """A window over an image. Its kernels take their parameters as a tuple of numbers, which C++ reads.

    Attributes:
        out_channels: channels of the result.
        kernel: height and width, like the next three.
        stride: between windows.
        padding: above and to the left. Negative if the first window starts inside the image.
        dilation: between the pixels of a window.
        behind: padding below and to the right; None if it equals `padding`.
    """

    out_channels: int
    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    behind: Sequence[int] | None = None

    def arguments(self) -> tuple[list[int], ...]:
        """Kernel, stride, padding and dilation, in the form that the operators take."""
        padding = [*self.padding, *(self.padding if self.behind is None else self.behind)]
        return list(self.kernel), list(self.stride), padding, list(self.dilation)

    def of_convolution(
        self,
        groups: int,
        epilogue: Epilogue,
        method: int = SUMS,
        dtype: torch.dtype | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> tuple[float, ...]:
        """The numbers for `convolve`; `method` as for `pack`, types as for `numbers_of_product`."""
        return (*self._numbers(), groups, method, *numbers_of(epilogue), *map(element_of, (dtype, out_dtype)))

    def of_pool(
        self, kind: str, is_ceiled: bool = False, out_dtype: torch.dtype | None = None
    ) -> tuple[int, ...]:
        """The numbers for `pool`.

        Args:
            kind: one of `POOLS`.
            is_ceiled: whether the last window may end outside the image.
            out_dtype: of the result; None for the image's.
        """
        return (*self._numbers(), int(is_ceiled), POOLS.index(kind), element_of(out_dtype))

    def is_usual(self) -> bool:
        """Whether all numbers are within the limits of the kernels; PyTorch computes other windows."""
        return all(abs(number) <= _C.MOST_KERNEL_STEP for number in self._numbers()[1:])

    def _numbers(self) -> tuple[int, ...]:
        behind = self.padding if self.behind is None else self.behind
        return (self.out_channels, *self.kernel, *self.stride, *self.padding, *self.dilation, *behind)


@functools.cache
def kernels(dtype: torch.dtype = torch.float32) -> _C.ImageKernels | None:
    """The kernels for a dtype; None if the processor, the compiler or this PyTorch does not support them."""
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
    """Pack bias and weight into the layout that the kernels read.

    Args:
        weight: [out, in / groups, height, width]; of a product [out, in].
        bias: [out]; None for zeros.
        groups: number of channel groups; must be supported by `_C.kernel_takes_groups`.
        method: SUMS; one of IN_UNIT, which are BF16X3 and BF16X2 for float32, and BF16 for bfloat16; one of
            TILES, the number of outputs along a tile's side; or INT8, which quantises the weight here, per
            output, and images in each call, per pixel.
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
    """Number of floats in the result of `pack` for a weight of this shape."""
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
    """A batch norm with fixed statistics [channels] of an image, packed as a 1x1 depthwise convolution."""
    # As in ATen, in float32: one product and one sum per element.
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
        x: [batch, channels, height, width]; fastest if the channels of a pixel are adjacent in memory. Of
            float32, it is rounded for products of bfloat16.
        packed: result of `pack`.
        summand: same shape and dtype as the result. Must not overlap the output, parts of which may be
            computed twice.
        numbers: result of `Window.of_convolution`.
        room: concat buffer: an image, into some of whose channels the result is written; then it is returned.
        first_channel: first of those channels.
    """
    ours = present(x.dtype)
    result = recorded("conv", ours.convolve, _resolved(x), packed, summand, numbers, room, first_channel)
    if result is None:
        summand = None if summand is None else _image(summand).to(_dtypes_of(x, numbers)[1])
        image = _image(_multiplied(x, numbers))
        result = recorded("conv", ours.convolve, image, packed, summand, numbers, room, first_channel)
    return _made(result, x)


def pool(
    x: torch.Tensor, numbers: tuple[int, ...], room: torch.Tensor | None = None, first_channel: int = 0
) -> torch.Tensor:
    """A pool, in channels_last, with the numbers of `Window.of_pool`; other arguments as for `convolve`."""
    ours = present(x.dtype)
    result = recorded("pool", ours.pool, _resolved(x), numbers, room, first_channel)
    if result is None:
        result = recorded("pool", ours.pool, _image(x), numbers, room, first_channel)
    return _made(result, x)


def linear(x: torch.Tensor, packed: torch.Tensor, numbers: tuple[float, ...]) -> torch.Tensor:
    """`activation(x @ weight.t() + bias)`, contiguous.

    Args:
        x: [..., in]. Of float32, it is rounded for products of bfloat16.
        packed: result of `pack`.
        numbers: result of `numbers_of_product`.
    """
    ours = present(x.dtype)
    result: torch.Tensor | None = recorded("linear", ours.linear, _resolved(x), packed, numbers)
    if result is None:  # also if there are more axes than the kernel supports
        rows = _plain(_multiplied(x, numbers)).reshape(-1, x.shape[-1]).contiguous()
        result = _made(recorded("linear", ours.linear, rows, packed, numbers), x).view(
            *x.shape[:-1], int(numbers[0])
        )
    return result


def shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Interleave the channels of groups of the same size, in channels_last: ATen's `channel_shuffle`."""
    ours = present(x.dtype)
    result = recorded("channel_shuffle", ours.shuffle, _resolved(x), groups)
    if result is None:
        result = recorded("channel_shuffle", ours.shuffle, _image(x), groups)
    return _made(result, x)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, *numbers: float
) -> torch.Tensor | None:
    """See `attention`; None if the kernel does not support the operands' strides."""
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
    """`softmax(q @ k.mT * scale + mask) @ v` for each head.

    Args:
        q: [batch, heads, queries, size], float32 or bfloat16, on the CPU.
        k: [batch, key heads, keys, size]; each key head serves heads / key heads consecutive heads.
        v: [batch, key heads, keys, value size].
        mask: added to the scores, broadcast to [batch, heads, queries, keys]; -inf for a masked key. A query
            whose keys are all masked gives zeros.
        is_causal: whether query i attends to keys up to i only; there is no mask then.
        scale: of the scores.
        is_by_heads: layout of the result: contiguous if true, else laid out as [batch, queries, heads, value
            size].

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


def pack_recurrent(weights: Sequence[torch.Tensor], cell: int, directions: int) -> torch.Tensor:
    """Pack weights and biases of a recurrent layer into the layout that the kernel reads.

    Args:
        weights: of each direction those of inputs [gates * hidden, inputs] and of states [gates * hidden,
            hidden], and both biases if there are any; as PyTorch orders them.
        cell: index in `ops.recurrent.CELLS`.
        directions: 1 or 2.
    """
    count = len(weights) // directions
    plain = [_plain(each).float().contiguous() for each in weights]
    parts = [tuple(plain[at : at + count]) for at in range(0, len(plain), count)]
    inputs, hidden = plain[0].shape[1], plain[1].shape[1]
    packed = torch.empty(_C.kernel_recurrent_size(cell, inputs, hidden, directions), device="cpu")
    given = [part if count == 4 else (*part, None, None) for part in parts]
    # Four each, which is not known of `part`'s type.
    present(torch.float32).pack_recurrent(given, cell, inputs, hidden, packed)  # type: ignore[arg-type]
    return packed


def recurrent(
    x: torch.Tensor,
    packed: torch.Tensor,
    first_h: torch.Tensor | None,
    first_c: torch.Tensor | None,
    cell: int,
    hidden: int,
    directions: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A recurrent layer.

    Args:
        x: [steps, batch, inputs], float32; fastest if the numbers of a row are adjacent in memory.
        packed: result of `pack_recurrent`.
        first_h: [directions, batch, hidden]; None for zeros.
        first_c: likewise, of an LSTM.
        cell: as it was packed.
        hidden: likewise.
        directions: likewise.

    Returns:
        Results [steps, batch, directions * hidden], the last states [directions, batch, hidden], and the last
        cells, which are empty without an LSTM.
    """
    ours = present(x.dtype)
    states = [None if each is None else _plain(each).contiguous() for each in (first_h, first_c)]
    result = recorded("recurrent", ours.recurrent, _plain(x), packed, *states, cell, hidden, directions)
    if result is None:
        x = _plain(x).contiguous()
        result = recorded("recurrent", ours.recurrent, x, packed, *states, cell, hidden, directions)
    if result is None:
        raise LoweringError("a kernel cannot read its operand", got=f"{type(x).__name__} {tuple(x.shape)}")
    made: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = result
    return made


def room_for(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Allocate a concat buffer: an image in channels_last that other calls write into."""
    # Independent of the user's default dtype and device.
    return torch.empty(sizes, dtype=dtype, device="cpu", memory_format=torch.channels_last)


def fill(x: torch.Tensor, room: torch.Tensor, first_channel: int) -> torch.Tensor:
    """Copy an image into some channels of another, which is returned."""
    room[:, first_channel : first_channel + x.shape[1]].copy_(x)
    return room


def joined(room: torch.Tensor, *written: torch.Tensor) -> torch.Tensor:
    """The concat buffer, once all its parts have been written."""
    return room


def has_int8(dtype: torch.dtype) -> bool:
    """Whether the method INT8 exists for images of this dtype on this machine."""
    return kernels(dtype) is not None and _C.kernel_has_int8(KERNEL_DTYPES[dtype].name)


def present(dtype: torch.dtype) -> _C.ImageKernels:
    """The kernels for images of this dtype.

    Raises:
        LoweringError: there are none on this machine.
    """
    ours = kernels(dtype)
    if ours is None:
        got = f"{dtype}, {_C.kernel_instructions() or 'no instructions for them'}"
        raise LoweringError("there are no kernels of our own for such tensors here", got=got, is_bug=False)
    return ours


def element_of(dtype: torch.dtype | None) -> int:
    """The number of a dtype among those of the kernels; -1 for None."""
    return -1 if dtype is None else _ELEMENTS.index(dtype)


def dtype_of(element: float) -> torch.dtype | None:
    """The dtype with this number; None for -1."""
    return None if element < 0 else _ELEMENTS[int(element)]


def _dtypes_of(x: torch.Tensor, numbers: Sequence[float]) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of products and result of a convolution or a product."""
    dtype = dtype_of(numbers[-2]) or x.dtype
    return dtype, dtype_of(numbers[-1]) or dtype


def result_dtype(x: torch.Tensor, numbers: Sequence[float]) -> torch.dtype:
    """The dtype of the result of `convolve` and `linear`."""
    return _dtypes_of(x, numbers)[1]


def _multiplied(x: torch.Tensor, numbers: Sequence[float]) -> torch.Tensor:
    """The operand in the dtype of the products."""
    return x.to(_dtypes_of(x, numbers)[0])


def _made(result: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    if result is None:
        raise LoweringError("a kernel cannot read its operand", got=f"{type(x).__name__} {tuple(x.shape)}")
    return result


def _resolved(x: torch.Tensor) -> torch.Tensor:
    """Materialise a lazily negated view."""
    return x.resolve_neg() if x.is_neg() else x


def _plain(x: torch.Tensor) -> torch.Tensor:
    """A plain tensor in place of a parameter or a negated view."""
    x = _resolved(x)
    return x if type(x) is torch.Tensor else x.detach().as_subclass(torch.Tensor)


def _image(x: torch.Tensor) -> torch.Tensor:
    return _plain(x).contiguous(memory_format=torch.channels_last)


def are_for(value: torch.Tensor | None, dtype: torch.dtype | None = None) -> bool:
    """Whether there are kernels for a tensor's device and dtype; `dtype` requires a specific one."""
    if value is None or value.device.type != "cpu" or dtype not in (None, value.dtype):
        return False
    return kernels(value.dtype) is not None


def with_epilogue(value: fx.Node) -> tuple[fx.Node, Epilogue]:
    """`fused_activation`, limited to our kernels' activations, which agree with ATen for all operands."""
    last, epilogue = fused_activation(value, is_finite=True)
    return (last, epilogue) if _is_had(epilogue) else (value, NONE)


def activation_at(node: fx.Node) -> Epilogue | None:
    """The activation that a call computes, if our kernels support it."""
    epilogue = activation_of_call(node)
    return epilogue if epilogue is not None and _is_had(epilogue) else None


def _is_had(epilogue: Epilogue) -> bool:
    return _name_of(epilogue) in EPILOGUES and all(map(math.isfinite, epilogue.scalars))


def _name_of(epilogue: Epilogue) -> str:
    return "gelu tanh" if epilogue.attr == "gelu" and epilogue.algorithm == "tanh" else epilogue.attr


def numbers_of(epilogue: Epilogue) -> tuple[int, float, float]:
    """The index of an activation in `EPILOGUES` and its parameters, at most two."""
    low, high = (*epilogue.scalars, 0.0, 0.0)[:2]
    return (EPILOGUES.index(_name_of(epilogue)), low, high)


def numbers_of_product(
    out_features: int,
    epilogue: Epilogue,
    method: int = SUMS,
    dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[float, ...]:
    """The numbers for `linear`.

    Args:
        out_features: of the weight.
        epilogue: the activation.
        method: as for `pack`.
        dtype: of what is multiplied, as the weight was packed; None for the operand's.
        out_dtype: of the result; None for that of the products.
    """
    return (out_features, method, *numbers_of(epilogue), *map(element_of, (dtype, out_dtype)))


def arguments_of(epilogue: Epilogue) -> tuple[str, list[float]]:
    """The name of an activation in `EPILOGUES` and its parameters, in the form that the operators take."""
    return _name_of(epilogue), list(epilogue.scalars)


def epilogue_of(name: str, scalars: Sequence[float] = ()) -> Epilogue:
    """The activation with these arguments of an operator."""
    attr, _, algorithm = name.partition(" ")
    return Epilogue(attr, tuple(scalars), algorithm)


def numbers_in(call: fx.Node) -> tuple[Any, ...]:
    """The numbers of a call of `conv` or `linear`, given as an operator or in its direct form."""
    function, args = direct_form(call)
    numbers: tuple[Any, ...] = args[2 if function is linear else 3]
    return numbers


def activation_in(call: fx.Node) -> str:
    """The activation of a call of `conv` or `linear`, by its name in `EPILOGUES`."""
    return EPILOGUES[numbers_in(call)[_ACTIVATION]]


def method_of(call: fx.Node) -> int:
    """The method of a call of `conv` or `linear`."""
    numbers = numbers_in(call)
    return int(numbers[1 if len(numbers) < _METHOD else _METHOD])
