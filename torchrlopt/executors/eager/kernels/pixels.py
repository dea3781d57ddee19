"""CUDA max pools, means over pixels and concatenations of channels_last images.

ATen's kernels for this layout launch too few blocks at small batch sizes. The same memory is a contiguous
volume whose innermost dimension is not pooled, and a mean is a product with ones. On an H200, bfloat16,
microseconds (`python -m baselines.kernels --device cuda` times such calls):

    max pool, 3 x 3, stride 2                     mean
     1 x  64 x 111 x 111    18.0 ->  6.8           1 x 120 x 28 x 28    7.3 -> 4.0
     1 x 128 x  55 x  55    31.5 ->  4.9           1 x 480 x 14 x 14    4.7 -> 2.8
     1 x 256 x  27 x  27    31.9 ->  4.2           1 x 960 x  7 x  7    4.5 -> 4.3
    16 x 256 x  27 x  27    33.4 -> 17.5          16 x 480 x 14 x 14    5.0 -> 3.5
    16 x  64 x 112 x 112    64.3 -> 69.3          16 x 2048 x 7 x  7    4.8 -> 5.3

If one of the concatenated images is a slice of another image, ATen copies each image with a separate kernel
for this layout; contiguous volumes, which these also are, it joins with one. In inception_v3 on an H100 in
bfloat16, 59 such copies and those in front of convolutions took 0.13 of the 0.69 ms of kernel time.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.eager.kernels.library import composite
from torchrlopt.executors.eager.kernels.selection import (
    first_result,
    has_cuda_kernels,
    insert_after,
    replace,
)
from torchrlopt.executors.lowering.fx_values import arguments, shape_key, static_shape, tensor_of

aten = torch.ops.aten

_MAX_ELEMENTS = 2**23
"""Maximum number of elements of the images of a max pool: with more, ATen's own kernel has enough blocks."""

_MIN_PIXELS = 100
"""Minimum number of pixels of an image: with fewer, a mean as a product gains nothing."""


_CUTS = frozenset({aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default})


def max_pool(
    x: torch.Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool
) -> torch.Tensor:
    """The values of a 2-D max pool, using the kernel for contiguous volumes.

    Args:
        x: [N, C, H, W], channels_last: a one-channel volume, H x W x C, whose last dimension is not pooled.
        kernel: height and width, like the others.
        stride: as for `torch.max_pool2d`, never empty.
        padding: as for `torch.max_pool2d`.
        dilation: as for `torch.max_pool2d`.
        ceil: whether the last window may start inside and end outside the image.

    Returns:
        The values only, without the indices of ATen's operator: [N, C, H', W'], channels_last.
    """
    volume = x.permute(0, 2, 3, 1).unsqueeze(1)
    window = ([*kernel, 1], [*stride, 1], [*padding, 0], [*dilation, 1], ceil)
    return torch.max_pool3d(volume, *window).squeeze(1).permute(0, 3, 1, 2)


def pixel_mean(x: torch.Tensor, ones: torch.Tensor, keepdim: bool) -> torch.Tensor:
    """The mean over the pixels of each image as a matrix product, with the accuracy of products.

    Args:
        x: [N, C, H, W], channels_last.
        ones: [1, 1, H * W].
        keepdim: whether the result is [N, C, 1, 1] or [N, C].
    """
    batch, channels = x.shape[:2]
    num_pixels = ones.shape[2]
    rows = x.permute(0, 2, 3, 1).reshape(batch, num_pixels, channels)
    mean = torch.baddbmm(
        ones[:, :, :1], ones.expand(batch, 1, num_pixels), rows, beta=0, alpha=1.0 / num_pixels
    )
    return mean.view(batch, channels, 1, 1) if keepdim else mean.view(batch, channels)


def join(images: list[torch.Tensor], axis: int) -> torch.Tensor:
    """Concatenate images, using the kernel for contiguous volumes.

    Args:
        images: [N, C, H, W] each, channels_last, gaps between the pixels allowed.
        axis: of the images, 0 to 3.

    Returns:
        As `torch.cat`, channels_last.
    """
    volumes = [image.permute(0, 2, 3, 1) for image in images]
    return torch.cat(volumes, (0, 3, 1, 2)[axis]).permute(0, 3, 1, 2)


MAX_POOL = composite(
    "volume_max_pool(Tensor x, int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode)"
    " -> Tensor",
    max_pool,
)
PIXEL_MEAN = composite("pixel_mean(Tensor x, Tensor ones, bool keepdim) -> Tensor", pixel_mean)
JOIN = composite("volume_cat(Tensor[] images, int axis) -> Tensor", join)


def select_pixel_kernels(
    graph: fx.Graph, static: Collection[fx.Node], channels_last: Collection[fx.Node]
) -> None:
    """Replace max pools, means and concatenations of such images; see `selection`.

    Args:
        graph: an ATen graph, after `layout.propagate`.
        static: the nodes that are the same in every call.
        channels_last: the nodes whose values are in channels_last at run time.
    """
    made: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node in static:
            continue
        if node.target is aten.cat.default:
            _join(node, channels_last)
            continue
        if node.args[:1] == () or node.args[0] not in channels_last:
            continue
        if not has_cuda_kernels(tensor_of(node.args[0])):
            continue
        if node.target is aten.max_pool2d_with_indices.default:
            _pool(graph, node)
        elif node.target is aten.mean.dim:
            _mean(graph, node, static, made)


def _pool(graph: fx.Graph, node: fx.Node) -> None:
    """Call `max_pool` at this node, if nobody reads the indices."""
    values = first_result(node)
    if values is None:
        return
    shape = static_shape(node.args[0])
    if shape is None or math.prod(shape) > _MAX_ELEMENTS:
        return
    named = arguments(node)
    kernel = named["kernel_size"]
    lists = (kernel, named["stride"] or kernel, named["padding"], named["dilation"])
    if any(not isinstance(size, int) for sizes in lists for size in sizes):
        return
    args = (node.args[0], *(list(sizes) * (2 // len(sizes)) for sizes in lists), named["ceil_mode"])
    replace(graph, node, values, MAX_POOL, args)


def _join(node: fx.Node, channels_last: Collection[fx.Node]) -> None:
    """Call `join` at this node, if its images are in channels_last and one is a slice of another image."""
    named = arguments(node)
    images = named["tensors"]
    if any(image not in channels_last or not has_cuda_kernels(tensor_of(image)) for image in images):
        return
    if len(shape_key(node) or ()) == 4 and any(map(_is_part, images)):
        node.args, node.kwargs = (list(images), named["dim"] % 4), {}
        node.target = JOIN


def _is_part(node: fx.Node) -> bool:
    """True for a slice of an image."""
    made = node.args[0] if node.target is operator.getitem else node
    return isinstance(made, fx.Node) and made.target in _CUTS


def _mean(graph: fx.Graph, node: fx.Node, static: Collection[fx.Node], made: dict[Any, fx.Node]) -> None:
    """Call `pixel_mean` at this node, if that is faster and no less accurate."""
    named = arguments(node)
    x = named["self"]
    value, shape = tensor_of(x), static_shape(x)
    assert value is not None
    # A product may use TensorFloat32 or accumulate in float16, unlike the mean.
    if shape is None or value.dtype is not torch.bfloat16 or named["dtype"] not in (None, value.dtype):
        return
    if sorted(axis % 4 for axis in named["dim"] or ()) != [2, 3]:
        return
    num_pixels = math.prod(shape[2:])
    ones = _ones(graph, num_pixels, value, static, made) if num_pixels >= _MIN_PIXELS else None
    if ones is not None:
        replace(graph, node, node, PIXEL_MEAN, (x, ones, bool(named["keepdim"])))


def _ones(
    graph: fx.Graph,
    num_pixels: int,
    like: torch.Tensor,
    static: Collection[fx.Node],
    made: dict[Any, fx.Node],
) -> fx.Node | None:
    """[1, 1, pixels], created once in the prologue; None if no suitable static value is available."""
    key = (num_pixels, like.dtype, like.device)
    if key not in made:
        weights = (node for node in graph.nodes if node in static and _is_like(tensor_of(node), like))
        weight = next(weights, None)
        if weight is None:
            return None
        made[key] = insert_after(graph, weight, aten.new_ones.default, (weight, [1, 1, num_pixels]))
        made[key].meta["val"] = weight.meta["val"].new_ones([1, 1, num_pixels])
    return made[key]


def _is_like(value: torch.Tensor | None, like: torch.Tensor) -> bool:
    return value is not None and value.dtype == like.dtype and value.device == like.device
