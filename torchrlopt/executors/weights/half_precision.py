"""Computes float16 operations in float32 on CPUs without float16 kernels.

On these CPUs ATen's float16 products and convolutions take 3 to 44 times as long as those in float32,
including conversions (one thread of an AMD EPYC; `python -m baselines.kernels --what calls --dtype float16`).
They are computed in float32, as are the operations between them if these have the same meaning in both
dtypes. Every value that another call reads, and every output, is rounded to float16 as before. No
intermediate value overflows that did not overflow before.
"""

from __future__ import annotations

import logging
import operator
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchrlopt.executors.lowering.fx_values import (
    cast_to,
    is_elementwise,
    is_mutable,
    static_shape,
    tensor_of,
)
from torchrlopt.executors.weights.split_fx import reaching_output
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.executors.weights.two_dtypes import TwoDtypes
from torchrlopt.ops.traits import MOVES
from torchrlopt.torch_private.operators import overload_name, schema_of

logger = logging.getLogger("torchrlopt")

aten = torch.ops.aten

_SLOW = frozenset(
    {
        aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.matmul.default,
        aten.linear.default, aten.einsum.default, aten.convolution.default, aten.conv1d.default,
        aten.conv2d.default, aten.conv3d.default, aten.scaled_dot_product_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default, aten.pow.Tensor_Scalar,
    }
)  # fmt: skip
"""Contractions, and a power, for which ATen has no vectorised float16 code."""

FOLLOWING = frozenset(
    {
        aten.max_pool2d_with_indices.default, aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default,
        aten.mean.dim, aten.mean.default, aten.sum.dim_IntList, aten.amax.default, aten.amin.default,
        aten._softmax.default, aten._log_softmax.default, aten.native_layer_norm.default,
        aten.native_group_norm.default, aten._native_batch_norm_legit_no_training.default,
        aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec,
    }
)  # fmt: skip
"""Computed in float32 if an operand already is."""

_OF_THE_DTYPE = frozenset(
    {"nan_to_num", "nextafter", "frexp", "ldexp", "floor", "ceil", "round", "trunc", "frac", "sign", "sgn"}
    | {"remainder", "fmod", "floor_divide", "heaviside"}
)
"""Elementwise, but their results depend on the dtype, or jump if a value is rounded."""


def compute_half_in_float32(module: fx.GraphModule, static: Collection[str]) -> None:
    """Compute float16 contractions, and what follows from them, in float32; round where values are read.

    Weights are converted once per set of weights. If that would take more than half of the available memory,
    nothing is changed.

    Args:
        module: modified in place; nodes carry fake tensors in `meta["val"]`.
        static: names of the placeholders that are the same in every call.
    """
    graph = module.graph
    if not any(node.target in _SLOW and _is_half(node) for node in graph.nodes):
        return
    if any(is_mutable(node) for node in graph.nodes):
        return  # a copy would not see later writes to the original
    if not _has_room(graph, static):
        logger.info("rlopt computes in float16: copies of the weights in float32 would take too much memory")
        return
    module.graph = _Rewriting(graph, static_nodes(graph, static)).rewritten()


class _Rewriting:
    """One walk over a graph.

    Args:
        graph: the old graph.
        static: the nodes that are the same in every call.
    """

    def __init__(self, graph: fx.Graph, static: Collection[fx.Node]) -> None:
        self._old = graph
        self._static = static
        self._returned = reaching_output(graph)
        self._new = TwoDtypes(lambda dtype: dtype is torch.float16, torch.float32)
        self._computed: set[fx.Node] = set()  # values that are computed in float32

    def rewritten(self) -> fx.Graph:
        """Return the new graph."""
        for node in self._old.nodes:
            if self._is_there(node):
                self._new.own[node] = self._new.other[node.args[0]]
            elif _is_cast(node, torch.float16) and _dtype(node.args[0]) is torch.float32:
                self._new.other[node] = self._new.in_own(node.args[0])
                self._computed.add(node)
            elif self._is_wide(node):
                self._new.copy_in_other(node)
                self._computed.add(node)
            else:
                self._new.copy(node)
        return self._new.graph

    def _is_there(self, node: fx.Node) -> bool:
        """True for a cast to float32 of a value computed in float32; outputs are always copied."""
        is_cast = _is_cast(node, torch.float32) and node not in self._returned
        return is_cast and node.args[0] in self._computed

    def _is_wide(self, node: fx.Node) -> bool:
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:
            return node.args[0] in self._computed
        if node.target in _SLOW:
            return _is_half(node)
        if not _is_half(node):
            return False
        if node in self._returned and node.target in MOVES:
            return False  # an output that shares memory with another one, or with a weight
        # A weight that is scaled down may be too small for float16.
        if node not in self._static and self._computed.isdisjoint(node.all_input_nodes):
            return False
        return node.target in FOLLOWING or node.target in MOVES or is_smooth(node.target)


def _is_half(node: fx.Node) -> bool:
    """True if the first result is float16, on a CPU without kernels for it."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(first, torch.Tensor) or first.dtype is not torch.float16:
        return False
    return first.device.type == "cpu" and lacks_kernels()


def is_smooth(target: Any) -> bool:
    """True for an elementwise operator whose result is as accurate as its operands."""
    if not is_elementwise(target):
        return False
    name, overload = schema_of(target).name.rpartition("::")[2], overload_name(target)
    return name not in _OF_THE_DTYPE and not overload.endswith("mode")


def _dtype(node: Any) -> torch.dtype | None:
    value = tensor_of(node)
    return None if value is None else value.dtype


def _is_cast(node: fx.Node, dtype: torch.dtype) -> bool:
    """True for a call that changes the dtype to this one, and nothing else."""
    value = tensor_of(node)
    return cast_to(node) is dtype and value is not None and value.device.type == "cpu"


def _has_room(graph: fx.Graph, static: Collection[str]) -> bool:
    """Whether float32 copies of all float16 weights fit comfortably into the available memory."""
    available = available_bytes()
    fixed = static_nodes(graph, static)
    weights = (node for node in graph.nodes if node in fixed and node.op != "call_function")
    needed = sum(4 * torch.Size(static_shape(node) or ()).numel() for node in weights if _is_half(node))
    return available is None or needed <= available / 2


def lacks_kernels() -> bool:
    """Whether this CPU lacks float16 kernels. ARM CPUs have them."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
    return is_x86 and not torch.ops.mkldnn._is_mkldnn_fp16_supported()


def available_bytes() -> int | None:
    """Memory still available to this process, in bytes; None if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        (line,) = (line for line in lines if line.startswith("MemAvailable:"))
        found = int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        return min(found, max(0, int(limit) - int(used)))
    except (OSError, ValueError):  # there are no cgroups, or no limit
        return found
