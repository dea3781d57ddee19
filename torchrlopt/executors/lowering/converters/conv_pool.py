"""Convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.converters.elementwise import activate
from torchrlopt.executors.lowering.converters.emitter import Emitter, Entry, aten
from torchrlopt.executors.lowering.converters.table import OpCall, Result, converts


class Window:
    """The window attributes of a convolution or pooling, pads resolved.

    Attributes:
        kernel: sizes, one per spatial dimension.
        strides: steps.
        dilations: spacing.
        begins: padding before each spatial dimension.
        ends: padding after it.
    """

    def __init__(self, emitter: Emitter, call: OpCall, x: fx.Node, kernel: Sequence[int]) -> None:
        rank = len(kernel)
        self.kernel = list(kernel)
        self.strides = list(call.attr("strides") or [1] * rank)
        self.dilations = list(call.attr("dilations") or [1] * rank)
        pads = list(call.attr("pads") or [0] * (2 * rank))
        auto = call.attr("auto_pad", "NOTSET")
        if auto == "VALID":
            pads = [0] * (2 * rank)
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            pads = self._same(emitter, x, auto == "SAME_UPPER")
        if len(pads) != 2 * rank or len(self.strides) != rank or len(self.dilations) != rank:
            raise LoweringError("window attributes have the wrong length", where=call.name)
        self.begins, self.ends = pads[:rank], pads[rank:]

    def _same(self, emitter: Emitter, x: fx.Node, upper: bool) -> list[int]:
        begins, ends = [], []
        for index, (kernel, stride, dilation) in enumerate(
            zip(self.kernel, self.strides, self.dilations, strict=True)
        ):
            size = emitter.static_dim(x, 2 + index)
            total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
            small, large = total // 2, total - total // 2
            begins.append(small if upper else large)
            ends.append(large if upper else small)
        return begins + ends

    @property
    def symmetric(self) -> bool:
        """Whether both sides are padded alike."""
        return self.begins == self.ends

    def pad(self, emitter: Emitter, x: fx.Node, value: float) -> fx.Node:
        """`x` padded explicitly; afterwards the window has no pads."""
        widths = interleaved(self.begins, self.ends)
        self.begins = [0] * len(self.begins)
        self.ends = [0] * len(self.ends)
        return emitter.op(aten.constant_pad_nd.default, x, widths, value)


def interleaved(begins: Sequence[Any], ends: Sequence[Any]) -> list[Any]:
    """Pads in torch's order: last dimension first, before and after side by side."""
    return [width for pair in zip(reversed(begins), reversed(ends), strict=True) for width in pair]


def convolution(emitter: Emitter, call: OpCall, x: fx.Node, w: fx.Node, bias: fx.Node | None) -> fx.Node:
    """ONNX's Conv on the given operands, attributes from the call."""
    kernel = [emitter.static_dim(w, 2 + index) for index in range(emitter.rank(w) - 2)]
    window = Window(emitter, call, x, kernel)
    if not window.symmetric:
        x = window.pad(emitter, x, 0.0)
    rank, group = len(kernel), call.attr("group", 1)
    return emitter.op(
        aten.convolution.default,
        *(x, w, bias, window.strides, window.begins, window.dilations, False, [0] * rank, group),
    )


@converts("Conv")
def _conv(emitter: Emitter, call: OpCall) -> Entry:
    return convolution(emitter, call, call.x(0), call.x(1), call.maybe_x(2))


@converts("FusedConv", domain="rlopt")
def _fused_conv(emitter: Emitter, call: OpCall) -> Entry:
    y = convolution(emitter, call, call.x(0), call.x(1), call.maybe_x(2))
    addend = call.maybe_x(3)
    if addend is not None:
        y = emitter.op(aten.add.Tensor, y, addend)
    return activate(emitter, y, call)


@converts("ConvTranspose")
def _conv_transpose(emitter: Emitter, call: OpCall) -> Entry:
    x, w = call.x(0), call.x(1)
    kernel = [emitter.static_dim(w, 2 + index) for index in range(emitter.rank(w) - 2)]
    rank = len(kernel)
    strides = list(call.attr("strides") or [1] * rank)
    dilations = list(call.attr("dilations") or [1] * rank)
    extra = list(call.attr("output_padding") or [0] * rank)
    pads = list(call.attr("pads") or [0] * (2 * rank))
    auto = call.attr("auto_pad", "NOTSET")
    wanted = call.attr("output_shape")
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        begins, ends = [], []
        for index in range(rank):
            size = emitter.static_dim(x, 2 + index)
            full = strides[index] * (size - 1) + extra[index] + (kernel[index] - 1) * dilations[index] + 1
            target = wanted[len(wanted) - rank + index] if wanted is not None else size * strides[index]
            total = full - target
            if total < 0:
                # The output is larger than the kernels reach: the rest is zero-filled at the end.
                extra[index] -= total
                total = 0
            small, large = total // 2, total - total // 2
            begins.append(small if auto == "SAME_UPPER" else large)
            ends.append(large if auto == "SAME_UPPER" else small)
        pads = begins + ends
    begins, ends = pads[:rank], pads[rank:]
    # torch pads both sides alike and takes less output_padding than a stride: compute everything, then cut.
    common = [min(b, e) for b, e in zip(begins, ends, strict=True)]
    cut = any(b != e for b, e in zip(begins, ends, strict=True)) or any(
        width >= max(stride, dilation)
        for width, stride, dilation in zip(extra, strides, dilations, strict=True)
    )
    arguments = (strides, [0] * rank if cut else common, dilations, True, [0] * rank if cut else extra)
    bias = call.maybe_x(2)
    y = emitter.op(aten.convolution.default, x, w, bias, *arguments, call.attr("group", 1))
    if not cut:
        return y
    if any(extra) and bias is not None:
        raise call.unsupported("a bias and output padding beyond the stride")
    widths = interleaved([-b for b in begins], [more - e for more, e in zip(extra, ends, strict=True)])
    return emitter.op(aten.constant_pad_nd.default, y, widths, 0.0)


_MAX_POOL: dict[int, Any] = {
    1: aten.max_pool1d.default,
    2: aten.max_pool2d_with_indices.default,
    3: aten.max_pool3d_with_indices.default,
}
_AVERAGE_POOL: dict[int, Any] = {
    1: aten.avg_pool1d.default,
    2: aten.avg_pool2d.default,
    3: aten.avg_pool3d.default,
}


def _lowest(dtype: torch.dtype) -> float | int:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _needs_padding(window: Window) -> bool:
    """Whether torch refuses these pads: it takes symmetric ones up to half the kernel."""
    half = [pad * 2 > kernel for pad, kernel in zip(window.begins, window.kernel, strict=True)]
    return not window.symmetric or any(half)


def _overhang(emitter: Emitter, x: fx.Node, window: Window) -> list[int]:
    """How far the last window of ceil mode reaches over the padded input, by ONNX's rule."""
    result = []
    for index, kernel in enumerate(window.kernel):
        stride, reach = window.strides[index], window.dilations[index] * (kernel - 1) + 1
        size = emitter.static_dim(x, 2 + index)
        padded = size + window.begins[index] + window.ends[index]
        count = -(-(padded - reach) // stride) + 1
        if (count - 1) * stride >= size + window.begins[index]:
            count -= 1  # a window that would start in the right padding is dropped
        result.append(max((count - 1) * stride + reach - padded, 0))
    return result


@converts("MaxPool")
def _max_pool(emitter: Emitter, call: OpCall) -> Result:
    x = call.x(0)
    window = Window(emitter, call, x, call.required("kernel_shape"))
    rank = len(window.kernel)
    with_indices = call.num_outputs > 1 and call.wanted[1]
    if rank not in _MAX_POOL or (with_indices and (call.attr("storage_order", 0) or rank != 2)):
        raise call.unsupported("indices in this form" if rank in _MAX_POOL else f"{rank} dimensions")
    dtype = emitter.dtype(x)
    ceil = bool(call.attr("ceil_mode", 0))
    if not with_indices and (_needs_padding(window) or (ceil and not dtype.is_floating_point)):
        if ceil:
            window.ends = [e + o for e, o in zip(window.ends, _overhang(emitter, x, window), strict=True)]
            ceil = False
        x = window.pad(emitter, x, _lowest(dtype))
    elif with_indices and not window.symmetric:
        raise call.unsupported("indices and asymmetric pads")
    narrow = dtype in (torch.int8, torch.uint8) or not dtype.is_floating_point
    if narrow:
        x = emitter.cast(x, torch.float64)
    y = emitter.op(_MAX_POOL[rank], x, window.kernel, window.strides, window.begins, window.dilations, ceil)
    if rank == 1:
        return emitter.cast(y, dtype)
    values = emitter.cast(emitter.item(y, 0), dtype)
    if not with_indices:
        return values
    return values, _flat_indices(emitter, x, emitter.item(y, 1))


def _flat_indices(emitter: Emitter, x: fx.Node, indices: fx.Node) -> fx.Node:
    """Indices over the whole tensor, as ONNX counts them, from indices within each plane."""
    planes = emitter.mul(emitter.dim(x, 0), emitter.dim(x, 1))
    size = emitter.prod(emitter.shape(x)[2:])
    start = emitter.op(aten.arange.default, planes, dtype=torch.int64, device=emitter.device)
    offsets = emitter.op(
        aten.reshape.default,
        emitter.op(aten.mul.Tensor, start, size),
        [emitter.dim(x, 0), emitter.dim(x, 1)] + [1] * (emitter.rank(x) - 2),
    )
    return emitter.op(aten.add.Tensor, indices, offsets)


@converts("AveragePool")
def _average_pool(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    window = Window(emitter, call, x, call.required("kernel_shape"))
    rank = len(window.kernel)
    if rank not in _AVERAGE_POOL:
        raise call.unsupported(f"{rank} dimensions")
    counted = bool(call.attr("count_include_pad", 0))
    ceil = bool(call.attr("ceil_mode", 0))
    if not _needs_padding(window) and all(d == 1 for d in window.dilations):
        arguments = (window.kernel, window.strides, window.begins, ceil, counted)
        return emitter.op(_AVERAGE_POOL[rank], x, *arguments)
    return _average_by_sums(emitter, call, x, window, ceil, counted)


def _average_by_sums(
    emitter: Emitter, call: OpCall, x: fx.Node, window: Window, ceil: bool, counted: bool
) -> fx.Node:
    """Average pooling as a depthwise convolution of the input over one of its mask."""
    rank = len(window.kernel)
    over = _overhang(emitter, x, window) if ceil else [0] * rank
    mask = emitter.op(aten.ones_like.default, x)
    pads = list(window.begins), list(window.ends)
    padded = window.pad(emitter, x, 0.0)
    mask = emitter.op(aten.constant_pad_nd.default, mask, interleaved(*pads), 1.0 if counted else 0.0)
    widths = interleaved([0] * rank, over)
    channels = emitter.static_dim(x, 1)
    ones = emitter.op(
        aten.ones.default, [channels, 1, *window.kernel], dtype=emitter.dtype(x), device=emitter.device
    )
    sums = []
    for operand in (padded, mask):
        operand = emitter.op(aten.constant_pad_nd.default, operand, widths, 0.0)
        sums.append(
            emitter.op(
                aten.convolution.default,
                *(operand, ones, None, window.strides, [0] * rank, window.dilations, False, [0] * rank),
                channels,
            )
        )
    return emitter.op(aten.div.Tensor, *sums)


@converts("LpPool")
def _lp_pool(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    window = Window(emitter, call, x, call.required("kernel_shape"))
    rank, power, channels = len(window.kernel), call.attr("p", 2), emitter.static_dim(x, 1)
    over = _overhang(emitter, x, window) if call.attr("ceil_mode", 0) else [0] * rank
    window.ends = [e + o for e, o in zip(window.ends, over, strict=True)]
    padded = window.pad(emitter, emitter.op(aten.abs.default, x), 0.0)
    raised = emitter.op(aten.pow.Tensor_Scalar, padded, power)
    ones = emitter.op(
        aten.ones.default, [channels, 1, *window.kernel], dtype=emitter.dtype(x), device=emitter.device
    )
    total = emitter.op(
        aten.convolution.default,
        *(raised, ones, None, window.strides, [0] * rank, window.dilations, False, [0] * rank, channels),
    )
    return emitter.op(aten.pow.Tensor_Scalar, total, 1.0 / power)


@converts("GlobalAveragePool")
def _global_average_pool(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    return emitter.op(aten.mean.dim, x, list(range(2, emitter.rank(x))), True)


@converts("GlobalMaxPool")
def _global_max_pool(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    return emitter.op(aten.amax.default, x, list(range(2, emitter.rank(x))), True)


@converts("MaxUnpool")
def _max_unpool(emitter: Emitter, call: OpCall) -> Entry:
    x, indices = call.x(0), call.x(1)
    window = Window(emitter, call, x, call.required("kernel_shape"))
    sizes = [
        (emitter.static_dim(x, 2 + i) - 1) * window.strides[i]
        - window.begins[i]
        - window.ends[i]
        + window.kernel[i]
        for i in range(len(window.kernel))
    ]
    if call.maybe(2) is not None:
        raise call.unsupported("an output shape")
    return _unpool(emitter, x, indices, [emitter.dim(x, 0), emitter.dim(x, 1), *sizes])


def _unpool(emitter: Emitter, x: fx.Node, indices: fx.Node, shape: Sequence[Any]) -> fx.Node:
    flat = emitter.op(aten.new_zeros.default, x, [emitter.prod(list(shape))])
    filled = emitter.op(
        aten.scatter.src,
        *(flat, 0),
        emitter.op(aten.reshape.default, indices, [-1]),
        emitter.op(aten.reshape.default, x, [-1]),
    )
    return emitter.op(aten.reshape.default, filled, list(shape))
