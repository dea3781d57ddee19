"""Grid sampling."""

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
