"""Runs CUDA convolutions with precomputed weights in channels_last, fused with what follows.

Tensor cores read channels_last; cuDNN copies other layouts in every call. `conv -> relu` and `conv + residual
-> relu` each become one cuDNN call, bias included; a 1x1 convolution with a bias becomes a matrix product, to
which cuBLAS adds the bias. On an H100, bfloat16, one image, microseconds (`python -m baselines.kernels
--device cuda` times such calls):

    convolution, bias, relu of                 ATen   channels_last   one call
    64 to 64 channels of 56 x 56, 3 x 3        15.8             9.7        5.4
    512 to 512 channels of 7 x 7, 3 x 3        31.3            15.4       11.5
    256 to 64 channels of 56 x 56, 1 x 1        7.2             7.2        3.4
    96 channels of 56 x 56, 3 x 3, depthwise    6.7             7.4       17.7

So depthwise convolutions are not fused; in batches of 16 they, too, are four times as fast in channels_last.

The relu of some cuDNN kernels turns NaN into zero. Each kernel is therefore probed before use: it runs on an
image with a NaN, of exactly the sizes it is used for.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels.epilogues import added_like
from torchrlopt.executors.eager.kernels.library import composite
from torchrlopt.executors.eager.kernels.selection import HALF, has_cuda_kernels, insert_after, replace
from torchrlopt.executors.eager.kernels.sites import Convolution, convolution_at
from torchrlopt.executors.lowering.fx_values import only_user, static_shape, tensor_of

aten = torch.ops.aten

RELU = aten.cudnn_convolution_relu.default
ADD_RELU = aten.cudnn_convolution_add_relu.default


def pixel_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A 1x1 convolution as a matrix product.

    Args:
        x: [N, in, H, W], channels_last.
        weight: [out, in, 1, 1].
        bias: [out].

    Returns:
        [N, out, H, W], channels_last.
    """
    batch, channels, height, width = x.shape
    rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
    product = torch.addmm(bias, rows, weight.reshape(-1, channels).t())
    return product.view(batch, height, width, weight.shape[0]).permute(0, 3, 1, 2)


PIXEL_PRODUCT = composite("pixel_product(Tensor x, Tensor weight, Tensor bias) -> Tensor", pixel_product)


def select_cudnn_convolutions(graph: fx.Graph, static: Collection[fx.Node]) -> list[fx.Node]:
    """Replace CUDA convolutions by channels_last calls; see `selection`.

    Returns:
        The calls, each channels_last regardless of the original; the caller restores layouts.
    """
    made: dict[Any, fx.Node] = {}
    sites = (_site(node, static) for node in list(graph.nodes))  # lazily: the ones before it change it
    return [_rewrite(graph, site, made) for site in sites if site is not None]


def _site(node: fx.Node, static: Collection[fx.Node]) -> Convolution | None:
    """The 2-D convolution at this node, if cuDNN is available to run it."""
    if not torch.backends.cudnn.enabled or torch.version.hip is not None:
        return None
    site = convolution_at(node, static, has_cuda_kernels)
    if site is None or site.output_padding is not None or len(site.stride) != 2:
        return None
    return site


def _rewrite(graph: fx.Graph, site: Convolution, made: dict[Any, fx.Node]) -> fx.Node:
    """Insert the call in place of the last fused node; returns it."""
    fused = _fused(graph, site, made)
    if fused is not None:
        return fused
    if site.bias is not None and _is_of_pixels(site):
        return replace(graph, site.node, site.node, PIXEL_PRODUCT, (site.x, site.weight, site.bias))
    window = (site.stride, site.padding, site.dilation, False, [0, 0], site.groups)
    args = (site.x, _channels_last(graph, site, made), site.bias, *window)
    return replace(graph, site.node, site.node, aten.convolution.default, args)


def _fused(graph: fx.Graph, site: Convolution, made: dict[Any, fx.Node]) -> fx.Node | None:
    """The convolution fused with the relu that follows it; None if that is impossible or slower."""
    shape = static_shape(site.weight)
    assert shape is not None
    if site.groups > 1 and shape[1] == 1:  # depthwise
        return None
    if torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic:
        return None  # the fused calls ignore these settings
    last, other = only_user(site.node), None
    if last is not None and last.target is aten.add.Tensor:
        added = added_like(site.node)
        if added is None:
            return None
        last, other = only_user(added[0]), added[1]
    if last is None or last.target is not aten.relu.default:
        return None
    window = (tuple(site.stride), tuple(site.padding), tuple(site.dilation), site.groups)
    value, x_shape = tensor_of(site.x), static_shape(site.x)
    assert value is not None
    if x_shape is None:
        return None
    if not hands_nan_on(x_shape, shape, window, value.dtype, value.device, other is not None):
        return None
    weight = _channels_last(graph, site, made)
    lists = (*map(list, window[:3]), site.groups)
    if other is None:
        return replace(graph, site.node, last, RELU, (site.x, weight, site.bias, *lists))
    return replace(graph, site.node, last, ADD_RELU, (site.x, weight, other, 1.0, site.bias, *lists))


def hands_nan_on(
    x_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    window: tuple[Any, ...],
    dtype: torch.dtype,
    device: torch.device,
    has_residual: bool,
) -> bool:
    """Probe whether cuDNN's fused relu of such a convolution propagates NaN as the convolution does.

    The answer holds for PyTorch's current cuDNN settings. False if it cannot be probed.

    Args:
        x_shape: [N, in, H, W].
        weight_shape: [out, in / groups, height, width].
        window: stride, padding, dilation, groups.
        dtype: of all operands.
        device: a CUDA device.
        has_residual: whether a sum comes before the relu.
    """
    if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        return False
    settings: Any = torch.backends.cudnn  # its stub lacks `conv`
    flags = (bool(settings.benchmark), str(settings.conv.fp32_precision))
    try:
        return _tried(x_shape, weight_shape, window, has_residual, flags, dtype=dtype, device=device)
    except torch.OutOfMemoryError:
        return False


@functools.cache
def _tried(
    x_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    window: tuple[Any, ...],
    has_residual: bool,
    flags: tuple[bool, str],
    **options: Any,
) -> bool:
    stride, padding, dilation, groups = window
    lists = (list(stride), list(padding), list(dilation), groups)
    with torch.inference_mode(False), torch.no_grad():
        x = torch.ones(x_shape, **options).contiguous(memory_format=torch.channels_last)
        weight = torch.ones(weight_shape, **options).contiguous(memory_format=torch.channels_last)
        bias = torch.zeros(weight_shape[0], **options)
        x[:, :, ::3, ::3] = torch.nan
        plain = aten.convolution.default(x, weight, bias, *lists[:3], False, [0, 0], groups)
        other = torch.zeros_like(plain)
        other[:, :, ::2] = torch.nan
        try:
            if has_residual:
                fused = ADD_RELU(x, weight, other, 1.0, bias, *lists)
                plain += other
            else:
                fused = RELU(x, weight, bias, *lists)
        except torch.OutOfMemoryError:
            raise  # says nothing about the kernel
        except RuntimeError:  # there is no such kernel
            return False
        return torch.equal(torch.isnan(fused), torch.isnan(plain))


def _is_of_pixels(site: Convolution) -> bool:
    """True for a 1x1 convolution that is faster as a matrix product.

    In float32, cuBLAS computes in full precision and is slower; cuDNN by default does not.
    """
    value, shape = tensor_of(site.x), static_shape(site.weight)
    assert value is not None
    assert shape is not None
    is_plain = set(site.stride) == {1} and set(site.padding) == {0} and site.groups == 1
    return is_plain and shape[2:] == (1, 1) and value.dtype in HALF


def _channels_last(graph: fx.Graph, site: Convolution, made: dict[Any, fx.Node]) -> fx.Node:
    """The weight in channels_last; created once, right after the weight."""
    key = ("channels_last", site.weight)
    if key not in made:
        args = (site.weight,)
        made[key] = insert_after(
            graph, site.weight, aten.contiguous.default, args, memory_format=torch.channels_last
        )
    return made[key]
