"""Direct translations of resampling: to another size, and at the points of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.builder import GraphBuilder
from torchrlopt.capture.translate.table import Target, shape_value, translation


@translation("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def _nearest(g: GraphBuilder, target: Target, x: ir.Value, size: object, *factors: Any) -> ir.Value:
    return _resize(g, target, x, factors, "nearest", "asymmetric", "floor")


@translation(
    "_upsample_nearest_exact1d.default",
    "_upsample_nearest_exact2d.default",
    "_upsample_nearest_exact3d.default",
)
def _nearest_exact(g: GraphBuilder, target: Target, x: ir.Value, size: object, *factors: Any) -> ir.Value:
    return _resize(g, target, x, factors, "nearest", "half_pixel", "round_prefer_ceil")


@translation("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
def _linear(
    g: GraphBuilder, target: Target, x: ir.Value, size: object, align: bool, *factors: Any
) -> ir.Value:
    return _resize(g, target, x, factors, "linear", _coordinates(align), None)


@translation("upsample_bicubic2d.default")
def _cubic(
    g: GraphBuilder, target: Target, x: ir.Value, size: object, align: bool, *factors: Any
) -> ir.Value:
    return _resize(g, target, x, factors, "cubic", _coordinates(align), None)


def _coordinates(align_corners: bool) -> str:
    return "align_corners" if align_corners else "half_pixel"


def _resize(
    g: GraphBuilder,
    target: Target,
    x: ir.Value,
    factors: Sequence[float | None] | None,
    mode: str,
    coordinates: str,
    rounding: str | None,
) -> ir.Value:
    scales = None
    sizes = None
    # ATen samples at 1 / factor where a factor is given, at input / output size where it is not.
    if factors and None not in factors:
        scales = g.constant(torch.tensor([1.0, 1.0, *factors], dtype=torch.float32))
    else:
        sizes = shape_value(g, target, target.dims, x)
    return g.op(
        "Resize",
        x,
        None,
        scales,
        sizes,
        dims=target.dims,
        mode=mode,
        coordinate_transformation_mode=coordinates,
        nearest_mode=rounding,
        cubic_coeff_a=-0.75 if mode == "cubic" else None,
    )


@translation("grid_sampler_2d.default", "grid_sampler_3d.default")
def _grid_sampler(
    g: GraphBuilder, target: Target, x: ir.Value, grid: ir.Value, mode: int, padding: int, align: bool
) -> ir.Value:
    return g.op(
        "GridSample",
        x,
        grid,
        dims=target.dims,
        mode=("linear", "nearest", "cubic")[mode],
        padding_mode=("zeros", "border", "reflection")[padding],
        align_corners=int(align),
    )
