"""The eager executor: PyTorch itself, one ATen call after the other."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from torchrlopt.executors import Lowered
from torchrlopt.executors.dispatch import use_builtins
from torchrlopt.executors.inplace import reuse_memory
from torchrlopt.executors.kernels import select_kernels
from torchrlopt.executors.lowering import lower_captured, lower_model
from torchrlopt.executors.prologue import split_prologue
from torchrlopt.executors.prologue_cache import PrologueCache
from torchrlopt.executors.widening import compute_in_float64
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
            if options.numerics == "real":
                compute_in_float64(module, static)
            select_kernels(module, static)
            split = split_prologue(module, static)
            reuse_memory(split.main)
            use_builtins(split.main)
            for part in (split.main, split.prologue):
                for node in part.graph.nodes:
                    node.meta = {}  # fake values keep all that the program was traced with alive
        cache = PrologueCache(split.prologue.forward, options.weights)
        return EagerCallable(split.main, cache, split.weights, split.inputs)


class EagerCallable:
    """A lowered graph.

    Args:
        main: the part that runs at every call.
        cache: gives the results of the part over weights.
        weights: positions of the arguments that the prologue takes.
        inputs: positions of the arguments that `main` takes.
    """

    def __init__(
        self, main: fx.GraphModule, cache: PrologueCache, weights: Sequence[int], inputs: Sequence[int]
    ) -> None:
        self.main = main
        self.cache = cache
        self._weights = _picker(weights)
        self._inputs = _picker(inputs)
        self._run = main.forward

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the captured graph, in its order."""
        outputs: tuple[Any, ...] = self._run(*self._inputs(args), *self.cache.get(self._weights(args)))
        return outputs


def _picker(positions: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that picks the items at these positions."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda items: tuple(items[position] for position in positions)


EXECUTOR = EagerExecutor()
