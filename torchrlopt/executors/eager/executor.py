"""The eager executor: PyTorch itself, one ATen call after the other."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.cuda_graphs import GraphedCall, is_on_cuda
from torchrlopt.executors.eager.dispatch import use_builtins
from torchrlopt.executors.eager.finiteness import add_weights_sum, are_finite, sources_of
from torchrlopt.executors.eager.inplace import reuse_memory
from torchrlopt.executors.eager.kernels.epilogues import fused_if_finite, taken_apart
from torchrlopt.executors.eager.kernels.layer import select_kernels
from torchrlopt.executors.kept_heap import on_heap, peak_bytes
from torchrlopt.executors.lowering.fx_values import ORIGIN, static_nodes
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured, lower_model
from torchrlopt.executors.registry import Lowered
from torchrlopt.executors.weights.prologue_cache import PrologueCache
from torchrlopt.executors.weights.split_fx import Split, split_prologue
from torchrlopt.executors.weights.widening import compute_in_float64
from torchrlopt.options import Options

if TYPE_CHECKING:
    from torchrlopt.capture import Captured


class EagerExecutor:
    """Lowers a model to an FX graph of ATen calls; what depends on weights only is computed once."""

    name = "eager"

    def lower(self, model: onnx_ir.Model, captured: Captured | None, options: Options) -> Lowered:
        """Build the callable; see `Executor.lower`.

        Raises:
            LoweringError: a node has no equivalent in ATen.
        """
        # Inside AOTAutograd's fake mode constants would come out fake.
        with _disable_current_modes():
            if captured is None:
                module, static = lower_model(model), frozenset[str]()
            else:
                module = lower_captured(model, captured)
                # With live weights nothing may be computed ahead of a call.
                static = captured.static_inputs if options.weights != "live" else frozenset()
            return assemble(module, static, options)


def assemble(module: fx.GraphModule, static: Collection[str], options: Options) -> EagerCallable:
    """The callable of a lowered graph: kernels chosen, weights split off, memory reused.

    Args:
        module: an ATen graph with `meta["val"]`; changed in place.
        static: names of the placeholders that are the same at every call.
        options: the user's choices.
    """
    is_real = options.numerics == "real"
    if is_real:
        compute_in_float64(module, static)
    graph = module.graph
    select_kernels(module, static, assume_finite=is_real)
    guarded = fused_if_finite(graph)
    sources = sources_of(graph, guarded)
    watched = {str(node.target) for node in sources if node.name not in static}
    total = add_weights_sum(graph, static_nodes(graph, static)) if guarded else None
    split = split_prologue(module, static, () if total is None else (total,))
    guard = _guard(split, watched, total) if guarded else None
    placeholders = list(split.main.graph.find_nodes(op="placeholder"))
    # With live weights everything varies, and every call would copy all of it.
    graphed = options.cuda_graphs and options.weights != "live" and any(map(is_on_cuda, placeholders))
    is_fixed = [at >= len(split.inputs) or str(node.target) in static for at, node in enumerate(placeholders)]
    reuse_memory(split.main)
    num_bytes = peak_bytes(split.main.graph)
    use_builtins(split.main)
    origins = {node.name: node.meta.get(ORIGIN, ()) for node in split.main.graph.nodes}
    for part in (split.main, split.prologue):
        for node in part.graph.nodes:
            node.meta = {}  # fake values keep all that the program was traced with alive
    prologue = split.prologue.forward if total is None else _Judged(split.prologue.forward)
    cache = PrologueCache(prologue, options.weights)
    main = on_heap(split.main.forward, num_bytes)
    run = GraphedCall(main, is_fixed) if graphed else main
    return EagerCallable(split.main, cache, split.weights, split.inputs, origins, guard, run)


def _guard(split: Split, watched: Collection[str], total: fx.Node | None) -> Guard:
    """What has to be finite, by position among the arguments of the main part."""
    names = [str(node.target) for node in split.main.graph.find_nodes(op="placeholder")]
    inputs = tuple(index for index, name in enumerate(names[: len(split.inputs)]) if name in watched)
    return Guard(inputs, None if total is None else len(names) - 1)


@dataclass(frozen=True)
class Guard:
    """What kernels for finite operands rest on.

    Attributes:
        inputs: positions, among the arguments of the main part, of the tensors to look at in each call.
        weights: position of the prologue's word on the weights; None where none are read.
    """

    inputs: tuple[int, ...]
    weights: int | None

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether all that counts is finite."""
        if self.weights is not None and not arguments[self.weights]:
            return False
        return are_finite([arguments[position] for position in self.inputs])


class _Judged:
    """A prologue whose last result, the sum of all weights, becomes the answer whether they are finite."""

    def __init__(self, compute: Callable[..., tuple[Any, ...]]) -> None:
        self._compute = compute

    def __call__(self, *weights: torch.Tensor) -> tuple[Any, ...]:
        *values, total = self._compute(*weights)
        return (*values, math.isfinite(total.item()))


class EagerCallable:
    """A lowered graph.

    Args:
        main: the part that runs at every call.
        cache: gives the results of the part over weights.
        weights: positions of the arguments that the prologue takes.
        inputs: positions of the arguments that `main` takes.
        origins: for the nodes of `main`, the names of the ONNX nodes whose work they do.
        guard: when `main` is right; None: always. Where it does not hold, `main` runs without the fused
            activations that rest on it.
        run: what calls `main`; None: itself.
    """

    def __init__(
        self,
        main: fx.GraphModule,
        cache: PrologueCache,
        weights: Sequence[int],
        inputs: Sequence[int],
        origins: Mapping[str, tuple[str, ...]],
        guard: Guard | None = None,
        run: Callable[..., Any] | None = None,
    ) -> None:
        self.main = main
        self.cache = cache
        self.origins = origins
        self._weights = _picker(weights)
        self._inputs = _picker(inputs)
        self._run = main.forward if run is None else run
        self._guard = guard
        self._taken_apart: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the captured graph, in its order."""
        values = (*self._inputs(args), *self.cache.get(self._weights(args)))
        if self._guard is not None and not self._guard.holds(values):
            return self._run_apart(values)
        outputs: tuple[Any, ...] = self._run(*values)
        return outputs

    def _run_apart(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The call with operands that are not finite."""
        if self._taken_apart is None:
            self._taken_apart = taken_apart(self.main).forward
        outputs: tuple[Any, ...] = self._taken_apart(*values)
        return outputs

    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What `main` is called with for these inputs of the captured graph, looked at as in a call.

        Raises:
            UnsupportedError: `main` is not right for them, as they are not finite.
        """
        inputs = tuple(args)
        values = (*self._inputs(inputs), *self.cache.get(self._weights(inputs)))
        if self._guard is not None and not self._guard.holds(values):
            raise UnsupportedError("the inputs are not finite")
        return values


def _picker(positions: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that picks the items at these positions."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda items: tuple(items[position] for position in positions)


EXECUTOR = EagerExecutor()
