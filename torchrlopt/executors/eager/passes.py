"""The eager executor's passes over a lowered graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable

import torch
from torch import fx

from torchrlopt.executors.cuda_graphs import is_on_cuda
from torchrlopt.executors.eager.dispatch import use_builtins
from torchrlopt.executors.eager.finiteness import finite_nodes, guard_of, weights_sum
from torchrlopt.executors.eager.guard import Guard
from torchrlopt.executors.eager.inplace import reuse_memory
from torchrlopt.executors.eager.kernels.alignment import align_products
from torchrlopt.executors.eager.kernels.attention import select_attentions
from torchrlopt.executors.eager.kernels.conversions import absorb_conversions, merge_conversions
from torchrlopt.executors.eager.kernels.convolution import select_convolutions
from torchrlopt.executors.eager.kernels.cublas import select_cublas_linears
from torchrlopt.executors.eager.kernels.cudnn import select_cudnn_convolutions
from torchrlopt.executors.eager.kernels.epilogues import fused_if_finite
from torchrlopt.executors.eager.kernels.images import select_image_kernels
from torchrlopt.executors.eager.kernels.linear import select_linears
from torchrlopt.executors.eager.kernels.pixels import select_pixel_kernels
from torchrlopt.executors.eager.kernels.quantised import expand_quantisation, select_quantised
from torchrlopt.executors.eager.kernels.recurrent import select_recurrent
from torchrlopt.executors.eager.kernels.rows import convolve_rows_as_images
from torchrlopt.executors.eager.kernels.single_pixels import flatten_single_pixels
from torchrlopt.executors.eager.kernels.sites import convolution_at, product_at
from torchrlopt.executors.eager.layout import propagate
from torchrlopt.executors.eager.sequences import with_sequences
from torchrlopt.executors.lowering.as_is import hide, show
from torchrlopt.executors.lowering.fx_values import ORIGIN, ancestors, is_mutable
from torchrlopt.executors.weights.half_precision import compute_half_in_float32
from torchrlopt.executors.weights.overflow import refuse_overflows
from torchrlopt.executors.weights.split_fx import Split, reaching_output, split_prologue
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.executors.weights.widening import compute_in_float64


@dataclasses.dataclass
class Program:
    """A lowered graph on its way through the passes.

    Attributes:
        module: the whole graph; after the split, the graph that was split.
        static: names of the placeholders that are the same in every call.
        is_real: whether rounding may differ from the original's.
        is_plain: whether PyTorch's own calls stay, so that passes that select kernels are left out.
        finite: the values that are finite as long as the inputs and the weights are.
        convolutions: the packed convolutions.
        channels_last: the values found to be in channels_last, after packed convolutions.
        split: prologue and main part.
        gathered: the main part with our kernels grouped into sequences; None if there are none to group.
        guard: checks whether the main part is correct for given arguments; None if it always is.
        is_on_cuda: whether an argument of the main part is on a CUDA device; known after all passes.
        origins: maps each node of the main part to the names of the ONNX nodes it implements.
    """

    module: fx.GraphModule
    static: Collection[str]
    is_real: bool
    is_plain: bool = False
    finite: frozenset[fx.Node] = frozenset()
    convolutions: list[fx.Node] = dataclasses.field(default_factory=list)
    channels_last: frozenset[fx.Node] = frozenset()
    split: Split | None = None
    gathered: fx.GraphModule | None = None
    guard: Guard | None = None
    is_on_cuda: bool = False
    origins: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def graph(self) -> fx.Graph:
        """The graph that runs in every call, with one call per kernel."""
        return self.module.graph if self.split is None else self.split.main.graph

    @property
    def fixed(self) -> Collection[fx.Node]:
        """The nodes of `graph` that are the same in every call."""
        return static_nodes(self.graph, self.static)

    @property
    def parts(self) -> Split:
        """The two parts; valid only after the split."""
        assert self.split is not None, "the program is still in one piece"
        return self.split

    @property
    def mains(self) -> tuple[fx.GraphModule, ...]:
        """All forms of the main part, after the split."""
        return (self.parts.main,) if self.gathered is None else (self.parts.main, self.gathered)


def run_passes(program: Program, passes: Iterable[Callable[[Program], None]]) -> None:
    """Run the passes in order on a program, in place; without those that select kernels if it is plain."""
    for run in passes:
        if not (program.is_plain and run in _SELECT_KERNELS):
            run(program)


# ---- the passes


def _hide_excluded(program: Program) -> None:
    hide(program.graph)


def _show_excluded(program: Program) -> None:
    for main in program.mains:
        show(main.graph)


def _widen(program: Program) -> None:
    """Compute in float32 what is slow in float16, and expressions over weights in float64.

    Only if rounding may differ.
    """
    if program.is_real:
        compute_half_in_float32(program.module, program.static)
        compute_in_float64(program.module, program.static)


def _drop_copies(program: Program) -> None:
    """Remove copies that keep the strides of the original (such as those left by a dropout).

    A copy stays if an output may share memory with it, because the caller may write to the output. If the
    graph mutates its own values, all copies stay.
    """
    graph = program.graph
    if any(map(is_mutable, graph.nodes)):
        return
    returned = reaching_output(graph)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        if len(node.args) == 1 and not node.kwargs and node not in returned:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _flatten_single_pixels(program: Program) -> None:
    flatten_single_pixels(program.graph)


def _convolve_rows_as_images(program: Program) -> None:
    if _has_values(program.graph):
        convolve_rows_as_images(program.graph, program.fixed)


def _find_finite(program: Program) -> None:
    """Find the values after which kernels for finite operands may be used, if rounding may differ."""
    if program.is_real:
        program.finite = finite_nodes(program.graph, program.fixed)


def _pack_linears(program: Program) -> None:
    graph = program.graph
    if program.is_real:
        select_quantised(graph, program.fixed, product_at)
    select_linears(graph, program.fixed, program.finite, program.is_real)
    align_products(graph, program.fixed)
    select_cublas_linears(graph, program.fixed)


def _use_attention(program: Program) -> None:
    select_attentions(program.graph)


def _pack_recurrent(program: Program) -> None:
    select_recurrent(program.graph, program.fixed)


def _pack_convolutions(program: Program) -> None:
    """Pack convolutions, but only if the strides to restore afterwards are known."""
    graph = program.graph
    if _has_values(graph):
        static = program.fixed
        if program.is_real:
            program.convolutions = select_quantised(graph, static, convolution_at)
        program.convolutions += select_convolutions(graph, static, program.finite, program.is_real)
        program.convolutions += select_cudnn_convolutions(graph, static)
        expand_quantisation(graph)


def _has_values(graph: fx.Graph) -> bool:
    return all("val" in node.meta for node in graph.nodes if node.op in ("placeholder", "call_function"))


def _merge_conversions(program: Program) -> None:
    merge_conversions(program.graph)


def _absorb_conversions(program: Program) -> None:
    absorb_conversions(program.graph, program.is_real)


def _restore_strides(program: Program) -> None:
    program.channels_last = propagate(program.graph, program.convolutions)


def _use_pixel_kernels(program: Program) -> None:
    graph = program.graph
    if program.channels_last:
        static = program.fixed
        select_pixel_kernels(graph, static, program.channels_last)
        select_image_kernels(graph, static, program.channels_last, program.is_real)


def _remove_unread(program: Program) -> None:
    program.graph.eliminate_dead_code()
    program.graph.lint()


def _split_weights(program: Program) -> None:
    """Split off the expressions over weights, including the packing of weights.

    If kernels need finite operands, the last result of the prologue is the sum of all weights.
    """
    graph = program.graph
    guarded = fused_if_finite(graph)
    needed = ancestors(guarded)
    watched = {
        str(node.target)
        for node in graph.find_nodes(op="placeholder")
        if node in needed and node.name not in program.static
    }
    total = weights_sum(graph, program.fixed) if guarded else None
    program.split = split_prologue(program.module, program.static, () if total is None else (total,))
    if program.is_real:  # otherwise no weights were folded
        refuse_overflows(program.split.prologue)
    if guarded:
        program.guard = guard_of(program.split, watched, total)


def _gather_kernels(program: Program) -> None:
    program.gathered = with_sequences(program.parts.main)


def _reuse_memory(program: Program) -> None:
    for main in program.mains:
        reuse_memory(main)


def _use_builtins(program: Program) -> None:
    for main in program.mains:
        use_builtins(main)


def _forget_values(program: Program) -> None:
    """Drop node metadata: the fake values keep everything from tracing alive."""
    program.is_on_cuda = any(map(is_on_cuda, program.graph.find_nodes(op="placeholder")))
    program.origins = {node.name: node.meta.get(ORIGIN, ()) for node in program.graph.nodes}
    for part in (*program.mains, program.parts.prologue):
        for node in part.graph.nodes:
            node.meta = {}


PASSES = (
    # All passes up to `_show_excluded` leave alone what the user excludes.
    _hide_excluded,
    # A packed weight is opaque, so arithmetic over weights is widened, and weights are reshaped, first.
    _widen,
    # A copy between a product and its activation would prevent fusing the two.
    _drop_copies,
    # A kernel writes a conversion of its result where that has no other reader.
    _merge_conversions,
    # These two create products and convolutions, whose results may be finite, too.
    _flatten_single_pixels,
    _convolve_rows_as_images,
    _find_finite,
    # These read and write the original strides, so they are chosen before strides change.
    _pack_linears,
    _use_attention,
    _pack_recurrent,
    # A packed convolution writes channels_last whatever the original wrote.
    _pack_convolutions,
    # Before layouts: then a concatenated image sees which kernel writes it.
    _absorb_conversions,
    _restore_strides,
    # A max pool is called differently if nobody reads its indices.
    _remove_unread,
    _use_pixel_kernels,
    _split_weights,
    # Before memory is reused: a graph with in-place calls cannot be grouped into sequences.
    _gather_kernels,
    # Results of the prologue are kept for later calls and must not be overwritten, so after the split.
    _reuse_memory,
    _show_excluded,
    # No pass that matches overloads can follow.
    _use_builtins,
    _forget_values,
)
"""The passes of the eager executor, in order."""

_SELECT_KERNELS = frozenset(
    {
        _pack_linears, _use_attention, _pack_recurrent, _pack_convolutions, _use_pixel_kernels,
        _gather_kernels,
    }
)  # fmt: skip
"""Passes that put kernels in place of PyTorch's calls."""
