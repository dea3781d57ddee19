"""Grid sampling, and images assembled from columns (col2im)."""

from __future__ import annotations

import onnx_ir as ir

from torchrlopt.ops.builder import GraphBuilder
from torchrlopt.ops.emitter import Emitter, Entry, aten
from torchrlopt.ops.to_aten import OpCall, converts
from torchrlopt.ops.to_onnx import Target, translation

_MODES = {"linear": 0, "nearest": 1, "cubic": 2, "bilinear": 0, "bicubic": 2}
_PADDING = {"zeros": 0, "border": 1, "reflection": 2}
"""ATen's codes by ONNX name; if two names share a code, the first is written."""


@translation("grid_sampler_2d.default", "grid_sampler_3d.default")
def _grid_sampler(
    g: GraphBuilder, target: Target, x: ir.Value, grid: ir.Value, mode: int, padding: int, align: bool
) -> ir.Value:
    return g.op(
        "GridSample",
        x,
        grid,
        dims=target.dims,
        mode=list(_MODES)[mode],
        padding_mode=list(_PADDING)[padding],
        align_corners=int(align),
    )


@converts("GridSample")
def _lower_grid_sample(emitter: Emitter, call: OpCall) -> Entry:
    x, grid = call.x(0), call.x(1)
    mode = call.choice("mode", "linear", _MODES)
    padding = call.choice("padding_mode", "zeros", _PADDING)
    corners = bool(call.attr("align_corners", 0))
    targets = {4: aten.grid_sampler_2d.default, 5: aten.grid_sampler_3d.default}
    rank = emitter.rank(x)
    if rank not in targets or (rank == 5 and mode == 2):
        raise call.unsupported(f"mode {call.attr('mode')} in {rank} dimensions")
    return emitter.op(targets[rank], x, emitter.cast(grid, emitter.dtype(x)), mode, padding, corners)


@converts("AffineGrid")
def _lower_affine_grid(emitter: Emitter, call: OpCall) -> Entry:
    size = emitter.const_ints(call.entry(1), "size")
    return emitter.op(
        aten.affine_grid_generator.default, call.x(0), size, bool(call.attr("align_corners", 0))
    )


@converts("Col2Im")
def _lower_col2im(emitter: Emitter, call: OpCall) -> Entry:
    x = call.x(0)
    image = emitter.const_ints(call.entry(1), "image shape")
    block = emitter.const_ints(call.entry(2), "block shape")
    rank = len(image)
    strides, dilations = call.attr("strides") or [1] * rank, call.attr("dilations") or [1] * rank
    pads = list(call.attr("pads") or [0] * (2 * rank))
    if rank != 2 or pads[:rank] != pads[rank:]:
        raise call.unsupported("asymmetric pads or more than two dimensions")
    return emitter.op(aten.col2im.default, x, image, block, list(dilations), pads[:rank], list(strides))
