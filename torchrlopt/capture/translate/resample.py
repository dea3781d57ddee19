"""Direct translations of resampling: to another size, and at the points of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from torchrlopt.capture.builder import GraphBuilder
from torchrlopt.capture.translate.table import Target, require, shape_value, translation


@translation("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def _nearest(g: GraphBuilder, target: Target, x: ir.Value, size: object, *factors: Any) -> ir.Value:
    # ATen takes floor(i * float32(1 / factor)) and runtimes floor(i / factor). A factor that float32 rounds
    # gives another element at ties, which a check sees for its own sizes only.
    known = [factor for factor in factors if factor is not None]
    is_exact = all(_rounded(factor) == factor for factor in known)
    require(
        is_exact or _are_ratios(known, x, target.dims), f"{target.node.name}: a factor that float32 rounds"
    )
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


@translation("_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")
def _antialiased(
    g: GraphBuilder, target: Target, x: ir.Value, size: object, align: bool, *factors: Any
) -> ir.Value:
    # With aligned corners ATen takes other taps than ONNX.
    require(not align, f"{target.node.name}: antialiased between aligned corners")
    mode = "cubic" if "bicubic" in str(target.node.target) else "linear"
    return _resize(g, target, x, factors, mode, "half_pixel", None, is_antialiased=True)


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
    is_antialiased: bool = False,
) -> ir.Value:
    scales = None
    sizes = None
    # ATen samples at 1 / factor where a factor is given, at input / output size where it is not. Where both
    # are the same, sizes are plainer: ONNX has factors in float32, and floor(10 * float32(1.3)) is 12.
    known = [factor for factor in factors or () if factor is not None]
    if factors and len(known) == len(factors) and not _are_ratios(known, x, target.dims):
        scales = g.constant(torch.tensor([1.0, 1.0, *map(_float32, known)], dtype=torch.float32))
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
        # ATen's antialiased kernels are Pillow's: other coefficients, and no taps outside of the image
        cubic_coeff_a=(-0.5 if is_antialiased else -0.75) if mode == "cubic" else None,
        antialias=1 if is_antialiased else None,
        exclude_outside=1 if is_antialiased else None,
    )


def _are_ratios(factors: Sequence[float], x: ir.Value, dims: Sequence[Any]) -> bool:
    """Whether factors that float32 rounds are the output sizes by the input sizes, which are fixed."""
    if len(factors) != len(dims) - 2 or x.shape is None or all(_rounded(each) == each for each in factors):
        return False
    pairs = list(zip(tuple(x.shape)[2:], dims[2:], factors, strict=True))
    return all(
        isinstance(size, int) and isinstance(resized, int) and abs(size * factor - resized) < 1e-9 * resized
        for size, resized, factor in pairs
    )


def _float32(factor: float) -> float:
    """The next number of float32 that is not below, so that size * factor rounds down as in float64."""
    rounded = _rounded(factor)
    if rounded >= factor:
        return rounded
    return float(torch.nextafter(torch.tensor(rounded, dtype=torch.float32), torch.tensor(math.inf)))


def _rounded(factor: float) -> float:
    return float(torch.tensor(factor, dtype=torch.float32))


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
