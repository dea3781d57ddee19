"""The eager executor: PyTorch itself, one ATen call after another."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from torch import fx

from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.cuda_graphs import GraphedCall
from torchrlopt.executors.eager.finiteness import with_answer
from torchrlopt.executors.eager.guard import Guard
from torchrlopt.executors.eager.kernels.epilogues import taken_apart
from torchrlopt.executors.eager.passes import PASSES, Program, run_passes
from torchrlopt.executors.lowering.lazy_code import forward_of, seldom_called
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured, lower_model
from torchrlopt.executors.registry import Lowered, Refusals
from torchrlopt.executors.weights.prologue_cache import PrologueCache
from torchrlopt.executors.weights.static_part import static_inputs
from torchrlopt.options import LoweringOptions
from torchrlopt.torch_private.modes import without_dispatch_modes

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured


class EagerExecutor:
    """Lowers a model to an FX graph of ATen calls and precomputes what depends on weights only."""

    name = "eager"

    def refusals(self, model: onnx_ir.Model, captured: Captured, options: LoweringOptions) -> Refusals:
        """See `Executor.refusals`. None: operators without an ONNX equivalent run as in the original."""
        return {}

    def lower(
        self,
        model: onnx_ir.Model,
        captured: Captured | None,
        options: LoweringOptions,
        is_plain: bool = False,
    ) -> Lowered:
        """Build the callable; see `Executor.lower`.

        Args:
            model: as there.
            captured: as there.
            options: as there.
            is_plain: whether it runs PyTorch's own calls only, to see what our kernels bring.

        Raises:
            LoweringError: a node has no ATen equivalent.
        """
        # Inside AOTAutograd's fake mode, constants would be fake tensors.
        with without_dispatch_modes():
            if captured is None:
                module, static = lower_model(model), frozenset[str]()
            else:
                module = lower_captured(model, captured)
                static = static_inputs(captured, options)
            return assemble(module, static, options, is_plain)


def assemble(
    module: fx.GraphModule,
    static: Collection[str],
    options: LoweringOptions,
    is_plain: bool = False,
) -> EagerCallable:
    """Run all passes on a lowered graph and return the callable.

    Args:
        module: an ATen graph with `meta["val"]`; modified in place.
        static: names of the placeholders that are the same in every call.
        options: the user's options.
        is_plain: see `EagerExecutor.lower`.
    """
    program = Program(module, static, options.numerics == "real", is_plain)
    run_passes(program, PASSES)
    split, guard = program.parts, program.guard
    names = [str(node.target) for node in split.main.graph.find_nodes(op="placeholder")]
    is_fixed = [at >= len(split.inputs) or name in static for at, name in enumerate(names)]
    prologue = (forward_of if options.weights == "live" else seldom_called)(split.prologue)
    cache = PrologueCache(
        prologue if guard is None or guard.weights is None else with_answer(prologue), options.weights
    )
    main = forward_of(program.gathered or split.main)
    is_recorded = options.records("cuda" if program.is_on_cuda else "cpu")
    run = GraphedCall(main, is_fixed) if is_recorded else main
    return EagerCallable(split.main, cache, split.weights, split.inputs, program.origins, guard, run)


class EagerCallable:
    """A lowered graph.

    Args:
        main: the part that runs in every call, with one call per kernel.
        cache: provides the results of the prologue, the part over weights.
        weights: positions of the arguments that the prologue takes.
        inputs: positions of the arguments that `main` takes.
        origins: maps each node of `main` to the names of the ONNX nodes it implements.
        guard: checks whether `main` is correct for given arguments; None if it always is. If the check fails,
            a copy of `main` runs in which fused activations are separate calls.
        run: equivalent to `main`, with kernels grouped into sequences; None: the function of `main`.
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
        self._unread = frozenset(weights) - frozenset(inputs)
        self._num_inputs = len(inputs)
        self._run = forward_of(main) if run is None else run
        self._guard = guard
        self._taken_apart: Callable[..., Any] | None = None

    @property
    def num_evaluations(self) -> int:
        """See `registry.Lowered`."""
        return self.cache.num_evaluations

    @property
    def packed(self) -> tuple[torch.Tensor, ...] | None:
        """The results of the expressions over weights, if they stay valid even when the weights change."""
        results = self.cache.final
        return None if results is None else tuple(x for x in results if isinstance(x, torch.Tensor))

    @property
    def num_prepared(self) -> int:
        """How many values the prologue makes of the weights."""
        return len(self.main.graph.find_nodes(op="placeholder")) - self._num_inputs

    @property
    def unread(self) -> frozenset[int]:
        """Positions of the weights that calls no longer read, because their precomputed results are used."""
        if self.cache.final is None:
            return frozenset()
        return self._unread

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the captured graph, in its order."""
        results = self.cache.final
        values = self._inputs(args) + (
            results if results is not None else self.cache.get(self._weights(args))
        )
        if self._guard is not None and not self._guard.holds(values):
            return self._run_apart(values)
        outputs: tuple[Any, ...] = self._run(*values)
        return outputs

    def _run_apart(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the call without fused activations, for operands that are not finite."""
        if self._taken_apart is None:
            self._taken_apart = taken_apart(self.main).forward
        outputs: tuple[Any, ...] = self._taken_apart(*values)
        return outputs

    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments that `main` is called with for these inputs of the captured graph.

        Raises:
            UnsupportedError: `main` is not correct for these inputs, because they are not finite.
        """
        inputs = tuple(args)
        values = self._inputs(inputs) + self.cache.get(self._weights(inputs))
        if self._guard is not None and not self._guard.holds(values):
            raise UnsupportedError("the inputs are not finite")
        return values


def _picker(positions: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that picks the items at these positions."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda items: tuple(items[position] for position in positions)


EXECUTOR = EagerExecutor()
