"""Convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.errors import LoweringError
from torchrlopt.onnx.forms.from_onnx import same_pads
from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.elementwise import activate
from torchrlopt.ops.emitter import Emitter, Entry, aten
from torchrlopt.ops.matmul import centred
from torchrlopt.ops.onnx_types import value_dims
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import Target, require, static_int, translation


class Window:
    """The window of a convolution or pooling: attributes per spatial dimension, with resolved pads."""

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
            sizes = [emitter.static_dim(x, 2 + index) for index in range(rank)]
            pads = list(same_pads(sizes, self.kernel, self.strides, self.dilations, auto == "SAME_UPPER"))
        if len(pads) != 2 * rank or len(self.strides) != rank or len(self.dilations) != rank:
            raise LoweringError("window attributes have the wrong length", where=call.name)
        self.begins, self.ends = pads[:rank], pads[rank:]

    @property
    def symmetric(self) -> bool:
        """Whether the padding is equal on both sides."""
        return self.begins == self.ends

    def pad(self, emitter: Emitter, x: fx.Node, value: float) -> fx.Node:
        """Pads `x` explicitly; the window has no pads afterwards."""
        widths = interleaved(self.begins, self.ends)
        self.begins = [0] * len(self.begins)
        self.ends = [0] * len(self.ends)
        return emitter.op(aten.constant_pad_nd.default, x, widths, value)


def interleaved(begins: Sequence[Any], ends: Sequence[Any]) -> list[Any]:
    """Pads in torch's order: last dimension first, begin and end in pairs."""
    return [width for pair in zip(reversed(begins), reversed(ends), strict=True) for width in pair]


def convolution(emitter: Emitter, call: OpCall, x: fx.Node, w: fx.Node, bias: fx.Node | None) -> fx.Node:
    """Emits ONNX's Conv on the given operands, with the call's attributes."""
    kernel = [emitter.static_dim(w, 2 + index) for index in range(emitter.rank(w) - 2)]
    window = Window(emitter, call, x, kernel)
    if not window.symmetric:
        x = window.pad(emitter, x, 0.0)
    rank, group = len(kernel), call.attr("group", 1)
    return emitter.op(
        aten.convolution.default,
        *(x, w, bias, window.strides, window.begins, window.dilations, False, [0] * rank, group),
    )


@translation("convolution.default")
def _convolution(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
) -> ir.Value:
    rank = len(value_dims(x)) - 2
    # ONNX has no unbatched images (C, H, W).
    require(rank == len(value_dims(weight)) - 2 and rank >= 1, "an unbatched convolution")
    attributes: dict[str, Any] = {
        "strides": _per_axis(stride, rank),
        "pads": _per_axis(padding, rank) * 2,
        "dilations": _per_axis(dilation, rank),
        "group": static_int(groups),
    }
    if not transposed:
        return g.op("Conv", x, weight, bias, dims=target.dims, **attributes)
    extra = _per_axis(output_padding, rank)
    if any(extra):
        attributes["output_padding"] = extra
    return g.op("ConvTranspose", x, weight, bias, dims=target.dims, **attributes)


def _per_axis(sizes: Sequence[Any], rank: int) -> list[int]:
    ints = [static_int(size) for size in sizes]
    return ints * rank if len(ints) == 1 else ints


@converts("Conv")
def _lower_conv(emitter: Emitter, call: OpCall) -> Entry:
    return convolution(emitter, call, call.x(0), call.x(1), call.maybe_x(2))


@converts("ConvTranspose")
def _lower_conv_transpose(emitter: Emitter, call: OpCall) -> Entry:
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
                # The output extends beyond the reach of the kernels: zero-fill the rest at the end.
                extra[index] -= total
                total = 0
            small, large = total // 2, total - total // 2
            begins.append(small if auto == "SAME_UPPER" else large)
            ends.append(large if auto == "SAME_UPPER" else small)
        pads = begins + ends
    begins, ends = pads[:rank], pads[rank:]
    # torch pads both sides equally and limits output_padding to less than a stride: compute all, then crop.
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


@converts("FusedConv", domain="rlopt")
def _lower_fused_conv(emitter: Emitter, call: OpCall) -> Entry:
    y = convolution(emitter, call, call.x(0), call.x(1), call.maybe_x(2))
    addend = call.maybe_x(3)
    if addend is not None:
        y = emitter.op(aten.add.Tensor, y, addend)
    return activate(emitter, y, call)


@converts("ConvInteger")
def _lower_conv_integer(emitter: Emitter, call: OpCall) -> Entry:
    x = centred(emitter, call.x(0), call.maybe_x(2), None)
    w = call.x(1)
    zero = call.maybe_x(3)
    if zero is not None and emitter.rank(zero) == 1 and emitter.dim(zero, 0) != 1:
        raise call.unsupported("one zero point per output channel")
    w = centred(emitter, w, zero, None)
    # float64 is exact here: |sum| < 2^53 for any kernel that fits in memory.
    y = convolution(emitter, call, emitter.cast(x, torch.float64), emitter.cast(w, torch.float64), None)
    return emitter.cast(y, torch.int32)
