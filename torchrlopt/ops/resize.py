"""Resize: uses torch's kernels if the modes agree, else one gather or matrix product per axis.

The interpolation weights follow the formulas of the ONNX operator. They are computed once, when the graph is
built, so the sizes must be static.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, aten, normal_axis
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import Target, require, shape_value, translation

NEAREST = {
    "upsample_nearest": ("asymmetric", "floor"),
    "_upsample_nearest_exact": ("half_pixel", "round_prefer_ceil"),
}
"""Coordinate and rounding rules by ATen kernel name, without the number of dimensions."""

INTERPOLATED = {
    "upsample_linear1d": ("linear", 3),
    "upsample_bilinear2d": ("linear", 4),
    "upsample_trilinear3d": ("linear", 5),
    "upsample_bicubic2d": ("cubic", 4),
}
"""ATen's interpolating kernels: mode and rank of the operand."""

_ROUND: dict[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda value: math.ceil(value - 0.5),
    "round_prefer_ceil": lambda value: math.floor(value + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


class _Axis:
    """One resized axis: sizes, scale, and the map from output to input coordinates."""

    def __init__(self, size: int, target: int, scale: float, call: OpCall) -> None:
        self.size, self.target, self.scale = size, target, scale
        self.mode = call.attr("coordinate_transformation_mode", "half_pixel")

    def coordinate(self, index: int) -> float:
        """The input coordinate of output position `index`."""
        mode, length = self.mode, self.scale * self.size
        if mode == "align_corners":
            return 0.0 if length <= 1 else index * (self.size - 1) / (length - 1)
        if mode == "asymmetric":
            return index / self.scale
        if mode == "pytorch_half_pixel" and length <= 1:
            return -0.5
        if mode == "half_pixel_symmetric":
            adjustment = self.target / length
            centre = self.size / 2
            return centre * (1 - adjustment) + (index + 0.5) / self.scale - 0.5
        return (index + 0.5) / self.scale - 0.5


def _cubic_weight(a: float) -> Callable[[float], float]:
    def weight(distance: float) -> float:
        d = abs(distance)
        if d <= 1:
            return (a + 2) * d**3 - (a + 3) * d**2 + 1
        return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0

    return weight


def _matrix(axis: _Axis, call: OpCall) -> torch.Tensor:
    """Interpolation weights [target, size] of one axis."""
    cubic = call.attr("mode") == "cubic"
    kernel = _cubic_weight(call.attr("cubic_coeff_a", -0.75)) if cubic else lambda d: max(1 - abs(d), 0.0)
    radius = 2 if cubic else 1
    squeeze = min(axis.scale, 1.0) if call.attr("antialias", 0) else 1.0
    exclude = bool(call.attr("exclude_outside", 0))
    matrix = torch.zeros(axis.target, axis.size, dtype=torch.float64)
    for row in range(axis.target):
        position = axis.coordinate(row)
        reach = radius / squeeze
        first, last = math.floor(position - reach), math.ceil(position + reach)
        taps = [(index, kernel((index - position) * squeeze)) for index in range(first, last + 1)]
        if exclude:
            taps = [(i, w) for i, w in taps if 0 <= i < axis.size]
        total = sum(w for _, w in taps)
        for index, weight in taps:
            matrix[row, min(max(index, 0), axis.size - 1)] += weight / total
    return matrix


def _sizes(emitter: Emitter, call: OpCall, x: fx.Node, axes: Sequence[int]) -> list[tuple[int, float]]:
    """Target size and scale of each resized axis."""
    own = [emitter.static_dim(x, axis) for axis in axes]
    scales: Any = None
    sizes: Any = None
    given = call.maybe(2)
    if given is not None and not (isinstance(given, torch.Tensor) and given.numel() == 0):
        scales = _floats(given, call)
    if not scales:
        scales, sizes = None, emitter.const_ints(call.entry(3), "sizes")
    are_factors = all(math.isfinite(number) and number > 0 for number in scales or sizes)
    if len(scales or sizes) != len(own) or 0 in own or not are_factors:
        raise call.unsupported("scales or sizes that do not fit the axes")  # files may contain anything here
    if scales is not None:
        return [(math.floor(size * scale), scale) for size, scale in zip(own, scales, strict=True)]
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    ratios = [target / size for target, size in zip(sizes, own, strict=True)]
    if policy == "stretch":
        return list(zip(sizes, ratios, strict=True))
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [(math.floor(ratio * size + 0.5), ratio) for size in own]


def _floats(entry: Entry, call: OpCall) -> list[float]:
    if not isinstance(entry, torch.Tensor):
        raise call.unsupported("scales that are no constant")
    return [float(number) for number in entry.to(torch.float64).reshape(-1).tolist()]


@translation(*(f"upsample_nearest{rank}d.default" for rank in (1, 2, 3)))
def _nearest(g: GraphBuilder, target: Target, x: ir.Value, size: object, *factors: Any) -> ir.Value:
    # ATen computes floor(i * float32(1 / factor)), runtimes floor(i / factor). If float32 rounds the factor,
    # ties select another element, and a check only covers the sizes it runs on.
    known = [factor for factor in factors if factor is not None]
    is_exact = all(_rounded(factor) == factor for factor in known)
    require(
        is_exact or _are_ratios(known, x, target.dims), f"{target.node.name}: a factor that float32 rounds"
    )
    return _resize(g, target, x, factors, "nearest", *NEAREST["upsample_nearest"])


@translation(*(f"_upsample_nearest_exact{rank}d.default" for rank in (1, 2, 3)))
def _nearest_exact(g: GraphBuilder, target: Target, x: ir.Value, size: object, *factors: Any) -> ir.Value:
    return _resize(g, target, x, factors, "nearest", *NEAREST["_upsample_nearest_exact"])


@translation(*(f"{name}.default" for name in INTERPOLATED))
def _interpolated(
    g: GraphBuilder, target: Target, x: ir.Value, size: object, align: bool, *factors: Any
) -> ir.Value:
    mode, _ = INTERPOLATED[target.opname]
    return _resize(g, target, x, factors, mode, "align_corners" if align else "half_pixel", None)


@translation("_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")
def _antialiased(
    g: GraphBuilder, target: Target, x: ir.Value, size: object, align: bool, *factors: Any
) -> ir.Value:
    # With aligned corners, ATen and ONNX use different taps.
    require(not align, f"{target.node.name}: antialiased between aligned corners")
    mode = "cubic" if "bicubic" in target.opname else "linear"
    return _resize(g, target, x, factors, mode, "half_pixel", None, is_antialiased=True)


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
    # ATen samples at 1 / factor if a factor is given, else at input / output size. If both are the same, pass
    # sizes instead: ONNX stores factors as float32, and floor(10 * float32(1.3)) is 12.
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
        # ATen's antialiased kernels are Pillow's: other coefficients, and no taps outside the image
        cubic_coeff_a=(-0.5 if is_antialiased else -0.75) if mode == "cubic" else None,
        antialias=1 if is_antialiased else None,
        exclude_outside=1 if is_antialiased else None,
    )


def _are_ratios(factors: Sequence[float], x: ir.Value, dims: Sequence[Any]) -> bool:
    """Whether the factors are inexact in float32 and equal the ratios of the sizes, which are static."""
    if len(factors) != len(dims) - 2 or x.shape is None or all(_rounded(each) == each for each in factors):
        return False
    pairs = list(zip(tuple(x.shape)[2:], dims[2:], factors, strict=True))
    return all(
        isinstance(size, int) and isinstance(resized, int) and abs(size * factor - resized) < 1e-9 * resized
        for size, resized, factor in pairs
    )


def _float32(factor: float) -> float:
    """Rounds up to the next float32, so that size * factor rounds down as in float64."""
    rounded = _rounded(factor)
    if rounded >= factor:
        return rounded
    return float(torch.nextafter(torch.tensor(rounded, dtype=torch.float32), torch.tensor(math.inf)))


def _rounded(factor: float) -> float:
    return float(torch.tensor(factor, dtype=torch.float32))


@converts("Resize")
def _lower_resize(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    rank = emitter.rank(x)
    axes = [normal_axis(axis, rank) for axis in call.attr("axes") or range(rank)]
    if call.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise call.unsupported("a region of interest")
    kernel = _torch_kernel(emitter, call, x, axes)
    if kernel is not None:
        return kernel
    targets = _sizes(emitter, call, x, axes)
    mode = call.attr("mode", "nearest")
    resized = [
        (axis, _Axis(emitter.static_dim(x, axis), target, scale, call))
        for axis, (target, scale) in zip(axes, targets, strict=True)
        if target != emitter.static_dim(x, axis) or scale != 1.0
    ]
    dtype = emitter.dtype(x)
    for axis, plan in resized:
        if mode == "nearest":
            x = _select(emitter, call, x, axis, plan)
        else:
            matrix = emitter.constant(_matrix(plan, call).to(dtype))
            moved = emitter.op(aten.transpose.int, x, axis, -1)
            moved = emitter.op(aten.matmul.default, moved, emitter.op(aten.permute.default, matrix, [1, 0]))
            x = emitter.op(aten.transpose.int, moved, axis, -1)
    return x


def _select(emitter: Emitter, call: OpCall, x: fx.Node, axis: int, plan: _Axis) -> fx.Node:
    choose = call.choice("nearest_mode", "round_prefer_floor", _ROUND)
    places = [min(max(choose(plan.coordinate(i)), 0), plan.size - 1) for i in range(plan.target)]
    return emitter.op(aten.index_select.default, x, axis, emitter.constant(torch.tensor(places)))


def _torch_kernel(emitter: Emitter, call: OpCall, x: fx.Node, axes: Sequence[int]) -> fx.Node | None:
    """Emits torch's kernel if one computes this form, for sizes that may be known at run time only."""
    rank, mode = emitter.rank(x), call.attr("mode", "nearest")
    rule = call.attr("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        rules = rule, call.attr("nearest_mode", "")
        names = [f"{name}{rank - 2}d" for name, each in NEAREST.items() if each == rules and rank < 6]
    else:
        is_known = rule in ("half_pixel", "align_corners")
        names = [name for name, each in INTERPOLATED.items() if each == (mode, rank) and is_known]
    if mode == "cubic" and abs(call.attr("cubic_coeff_a", -0.75) + 0.75) > 1e-6:
        return None
    others = ("antialias", "exclude_outside", "keep_aspect_ratio_policy")
    is_plain = all(call.attr(name, 0) in (0, "stretch") for name in others)
    if not names or not is_plain or list(axes) != list(range(rank)):
        return None
    own, scales = emitter.shape(x), call.maybe(2)
    factors = [] if scales is None else _floats(scales, call)
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        return None
    sizes = [] if factors else emitter.ints(call.entry(3))
    for size, factor in zip(own, factors, strict=False):
        if factor.is_integer():
            sizes.append(emitter.mul(size, int(factor)))
        elif isinstance(size, int) and abs(math.floor(size * factor) - size * factor) < 1e-6:
            sizes.append(math.floor(size * factor))
    if len(sizes) != rank or len(factors) not in (0, rank):
        return None
    pairs = zip(own, sizes, strict=True)
    known = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    if len(known) == rank:
        if not emitter.dtype(x).is_floating_point or own[:2] != sizes[:2] or 0 in (*own, *sizes):
            return None
        # Integer factors only: torch computes the coordinate in float32 from the sizes.
        if mode == "nearest" and any(b % a for a, b in known):
            return None
    flags = [] if mode == "nearest" else [rule == "align_corners"]
    return emitter.op(getattr(aten, names[0]).default, x, sizes[2:], *flags)
