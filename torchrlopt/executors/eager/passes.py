"""The eager executor's passes over a lowered graph: a list of named passes with their preconditions.

A pass needs some facts about the program, establishes some and may end others. `checked_order` rejects a list
in which a fact is needed before it holds or after it has ended, so a misplaced pass fails when this module is
imported, not when some model gives wrong results.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable

import torch
from torch import fx

from torchrlopt.errors import LoweringError
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


class Fact(enum.Flag):
    """What may hold for a program between two passes; sets of facts are unions."""

    VALUES = enum.auto()  # placeholders and calls carry in meta['val'] the tensor of the original program
    OVERLOADS = enum.auto()  # calls name ATen overloads
    FUNCTIONAL = enum.auto()  # calls that passes put in write only into room made for them
    WHOLE = enum.auto()  # expressions over weights stand in the graph that runs at every call
    PLAIN_WEIGHTS = enum.auto()  # no weight is packed
    FLAT = enum.auto()  # convolutions of one pixel are products
    IMAGES = enum.auto()  # 1-D convolutions are 2-D ones, of images with a height of one
    NO_COPIES = enum.auto()  # copies that change nothing are gone
    CONVERTED_ONCE = enum.auto()  # no two calls convert the same value to the same dtype
    FINITE = enum.auto()  # it is known which values are finite as long as the inputs are
    PACKED_LINEARS = enum.auto()  # products with a weight are packed where that pays
    PACKED_CONVOLUTIONS = enum.auto()  # convolutions with a weight are packed where that pays
    STRIDES = enum.auto()  # outputs, and calls that depend on strides, see those of the original program
    ALL_READ = enum.auto()  # no call is left whose result nobody reads
    GUARDED = enum.auto()  # it is known which values have to be finite for the kernels that were chosen
    APART = enum.auto()  # the prologue and the part that runs at every call are graphs of their own
    HIDDEN = enum.auto()  # calls that the user excludes are hidden
    PLACED = enum.auto()  # it is known on which device the graph runs


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
        needs_finite: names of the inputs that must be finite, and the sum that is finite if all weights are;
            None if every kernel is correct for every operand.
        split: prologue and main part.
        gathered: the main part with our kernels grouped into sequences; None if there are none to group.
        guard: checks whether the main part is correct for given arguments; None if it always is.
        is_on_cuda: whether an argument of the main part is on a CUDA device; None if not determined yet.
        origins: maps each node of the main part to the names of the ONNX nodes it implements.
    """

    module: fx.GraphModule
    static: Collection[str]
    is_real: bool
    is_plain: bool = False
    finite: frozenset[fx.Node] = frozenset()
    convolutions: list[fx.Node] = dataclasses.field(default_factory=list)
    channels_last: frozenset[fx.Node] = frozenset()
    needs_finite: tuple[frozenset[str], fx.Node | None] | None = None
    split: Split | None = None
    gathered: fx.GraphModule | None = None
    guard: Guard | None = None
    is_on_cuda: bool | None = None
    origins: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def graph(self) -> fx.Graph:
        """The graph that runs in every call, with one call per kernel."""
        return self.module.graph if self.split is None else self.split.main.graph

    @property
    def parts(self) -> Split:
        """The two parts; valid only after the split."""
        assert self.split is not None, "the program is still in one piece"
        return self.split

    @property
    def mains(self) -> tuple[fx.GraphModule, ...]:
        """All forms of the main part, after the split."""
        return (self.parts.main,) if self.gathered is None else (self.parts.main, self.gathered)


_NO_FACTS = Fact(0)


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass.

    Attributes:
        run: does it, in place.
        needs: facts that must hold before.
        gives: facts that hold afterwards.
        ends: facts that no longer hold afterwards.
        selects: whether it puts kernels in place of PyTorch's calls; its facts hold if it is left out, too.
    """

    run: Callable[[Program], None]
    needs: Fact
    gives: Fact = _NO_FACTS
    ends: Fact = _NO_FACTS
    selects: bool = False

    @property
    def name(self) -> str:
        """What it does."""
        return self.run.__name__.removeprefix("_")


LOWERED = Fact.VALUES | Fact.OVERLOADS | Fact.FUNCTIONAL | Fact.WHOLE | Fact.PLAIN_WEIGHTS | Fact.STRIDES
"""The facts that hold for a freshly lowered graph."""


def checked_order(passes: Iterable[Pass], facts: Fact = LOWERED) -> tuple[Pass, ...]:
    """Return the passes if they can run in this order.

    Args:
        passes: in order.
        facts: what holds before the first pass.

    Raises:
        LoweringError: a pass needs a fact that does not hold at its position.
    """
    given = tuple(passes)
    for each in given:
        missing = each.needs & ~facts
        if missing:
            raise LoweringError(
                "a pass of the eager executor is out of order",
                where=each.name,
                expected=str(missing.name),
                got=", ".join(one.name for one in given),
            )
        facts = (facts | each.gives) & ~each.ends
    return given


def run_passes(program: Program, passes: Iterable[Pass]) -> None:
    """Run the passes in order on a program, in place; without those that select kernels if it is plain."""
    for each in passes:
        if not (each.selects and program.is_plain):
            each.run(program)


# ---- the passes


def _hide_excluded(program: Program) -> None:
    hide(program.graph)


def _show_excluded(program: Program) -> None:
    for main in program.mains:
        show(main.graph)


def _widen_half(program: Program) -> None:
    """Compute in float32 what is slow in float16, if rounding may differ."""
    if program.is_real:
        compute_half_in_float32(program.module, program.static)


def _widen_weights(program: Program) -> None:
    """Compute expressions over weights in float64, if rounding may differ."""
    if program.is_real:
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
    graph = program.graph
    if _has_values(graph):
        convolve_rows_as_images(graph, static_nodes(graph, program.static))


def _find_finite(program: Program) -> None:
    """Find the values after which kernels for finite operands may be used, if rounding may differ."""
    if program.is_real:
        program.finite = finite_nodes(program.graph, static_nodes(program.graph, program.static))


def _pack_linears(program: Program) -> None:
    graph = program.graph
    if program.is_real:
        select_quantised(graph, static_nodes(graph, program.static), product_at)
    select_linears(graph, static_nodes(graph, program.static), program.finite, program.is_real)
    align_products(graph, static_nodes(graph, program.static))
    select_cublas_linears(graph, static_nodes(graph, program.static))


def _use_attention(program: Program) -> None:
    select_attentions(program.graph)


def _pack_recurrent(program: Program) -> None:
    select_recurrent(program.graph, static_nodes(program.graph, program.static))


def _pack_convolutions(program: Program) -> None:
    """Pack convolutions, but only if the strides to restore afterwards are known."""
    graph = program.graph
    if _has_values(graph):
        static = static_nodes(graph, program.static)
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
        static = static_nodes(graph, program.static)
        select_pixel_kernels(graph, static, program.channels_last)
        select_image_kernels(graph, static, program.channels_last, program.is_real)


def _remove_unread(program: Program) -> None:
    program.graph.eliminate_dead_code()
    program.graph.lint()


def _note_what_must_be_finite(program: Program) -> None:
    """Record the inputs that the chosen kernels need to be finite, and sum the weights."""
    graph = program.graph
    guarded = fused_if_finite(graph)
    if not guarded:
        return
    needed = ancestors(guarded)
    inputs = {
        str(node.target)
        for node in graph.find_nodes(op="placeholder")
        if node in needed and node.name not in program.static
    }
    program.needs_finite = frozenset(inputs), weights_sum(graph, static_nodes(graph, program.static))


def _split_weights(program: Program) -> None:
    """Split off the expressions over weights, including the packing of weights and their sum."""
    watched, total = program.needs_finite or (frozenset(), None)
    program.split = split_prologue(program.module, program.static, () if total is None else (total,))
    if program.is_real:  # otherwise no weights were folded
        refuse_overflows(program.split.prologue)
    if program.needs_finite is not None:
        program.guard = guard_of(program.split, watched, total)


def _gather_kernels(program: Program) -> None:
    program.gathered = with_sequences(program.parts.main)


def _reuse_memory(program: Program) -> None:
    for main in program.mains:
        reuse_memory(main)


def _find_device(program: Program) -> None:
    program.is_on_cuda = any(map(is_on_cuda, program.graph.find_nodes(op="placeholder")))


def _use_builtins(program: Program) -> None:
    for main in program.mains:
        use_builtins(main)


def _forget_values(program: Program) -> None:
    """Drop node metadata: the fake values keep everything from tracing alive."""
    program.origins = {node.name: node.meta.get(ORIGIN, ()) for node in program.graph.nodes}
    for part in (*program.mains, program.parts.prologue):
        for node in part.graph.nodes:
            node.meta = {}


_GRAPH = Fact.VALUES | Fact.OVERLOADS | Fact.FUNCTIONAL | Fact.WHOLE
"""The facts that every pass over the whole graph needs."""

PASSES = checked_order(
    (
        # All passes up to `_show_excluded` leave alone what the user excludes.
        Pass(_hide_excluded, _GRAPH, gives=Fact.HIDDEN),
        Pass(_widen_half, Fact.HIDDEN | _GRAPH | Fact.PLAIN_WEIGHTS),
        # A packed weight is opaque, so arithmetic over weights is widened first.
        Pass(_widen_weights, _GRAPH | Fact.PLAIN_WEIGHTS),
        # A copy between a product and its activation would prevent fusing the two.
        Pass(_drop_copies, _GRAPH | Fact.PLAIN_WEIGHTS, gives=Fact.NO_COPIES),
        # A kernel writes a conversion of its result where that has no other reader.
        Pass(_merge_conversions, _GRAPH | Fact.PLAIN_WEIGHTS, gives=Fact.CONVERTED_ONCE),
        # It creates products, whose results may be finite too.
        Pass(
            _flatten_single_pixels,
            _GRAPH | Fact.PLAIN_WEIGHTS | Fact.STRIDES,
            gives=Fact.FLAT,
        ),
        # It creates convolutions, whose results may be finite, too.
        Pass(
            _convolve_rows_as_images,
            _GRAPH | Fact.PLAIN_WEIGHTS | Fact.STRIDES | Fact.FLAT,
            gives=Fact.IMAGES,
        ),
        Pass(
            _find_finite,
            _GRAPH | Fact.PLAIN_WEIGHTS | Fact.NO_COPIES | Fact.FLAT | Fact.IMAGES,
            gives=Fact.FINITE,
        ),
        # A packed linear reads and writes the original strides, so it is chosen before strides change.
        Pass(
            _pack_linears,
            _GRAPH | Fact.NO_COPIES | Fact.FINITE | Fact.STRIDES,
            gives=Fact.PACKED_LINEARS,
            ends=Fact.PLAIN_WEIGHTS,
            selects=True,
        ),
        Pass(_use_attention, _GRAPH | Fact.NO_COPIES | Fact.STRIDES, selects=True),
        Pass(_pack_recurrent, _GRAPH | Fact.STRIDES, selects=True),
        # A packed convolution writes channels_last whatever the original wrote.
        Pass(
            _pack_convolutions,
            _GRAPH | Fact.NO_COPIES | Fact.FINITE | Fact.STRIDES,
            gives=Fact.PACKED_CONVOLUTIONS,
            ends=Fact.PLAIN_WEIGHTS | Fact.STRIDES,
            selects=True,
        ),
        # Before layouts: then a concatenated image sees which kernel writes it.
        Pass(
            _absorb_conversions,
            _GRAPH | Fact.CONVERTED_ONCE | Fact.PACKED_LINEARS | Fact.PACKED_CONVOLUTIONS,
        ),
        Pass(_restore_strides, _GRAPH | Fact.PACKED_CONVOLUTIONS, gives=Fact.STRIDES),
        Pass(
            _remove_unread,
            _GRAPH | Fact.PACKED_LINEARS | Fact.PACKED_CONVOLUTIONS | Fact.STRIDES,
            gives=Fact.ALL_READ,
        ),
        # A max pool is called differently if nobody reads its indices.
        Pass(_use_pixel_kernels, _GRAPH | Fact.STRIDES | Fact.ALL_READ, selects=True),
        # The sum added here has no readers until the split makes it a result of the prologue.
        Pass(
            _note_what_must_be_finite,
            _GRAPH | Fact.PACKED_LINEARS | Fact.PACKED_CONVOLUTIONS | Fact.ALL_READ,
            gives=Fact.GUARDED,
        ),
        Pass(
            _split_weights,
            _GRAPH | Fact.STRIDES | Fact.ALL_READ | Fact.GUARDED,
            gives=Fact.APART,
            ends=Fact.WHOLE,
        ),
        # Before memory is reused: a graph with in-place calls cannot be grouped into sequences.
        Pass(
            _gather_kernels,
            Fact.VALUES | Fact.OVERLOADS | Fact.FUNCTIONAL | Fact.ALL_READ | Fact.APART,
            selects=True,
        ),
        # Results of the prologue are kept for later calls and must not be overwritten.
        Pass(
            _reuse_memory,
            Fact.VALUES | Fact.OVERLOADS | Fact.FUNCTIONAL | Fact.ALL_READ | Fact.APART,
            ends=Fact.FUNCTIONAL,
        ),
        Pass(_find_device, Fact.VALUES | Fact.APART, gives=Fact.PLACED),
        Pass(_show_excluded, Fact.HIDDEN | Fact.APART, ends=Fact.HIDDEN),
        Pass(_use_builtins, Fact.VALUES | Fact.OVERLOADS | Fact.APART, ends=Fact.OVERLOADS),
        Pass(_forget_values, Fact.VALUES | Fact.APART | Fact.PLACED, ends=Fact.VALUES),
    )
)
"""The passes of the eager executor, in order."""
