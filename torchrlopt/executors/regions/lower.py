"""Lowers a graph of which a runtime supports parts: those run there, the rest in PyTorch.

An executor reports the nodes it does not support (`Executor.refusals`). If there are none it gets the whole
graph. Otherwise the graph becomes ATen calls, as for eager PyTorch. The calls of supported nodes form regions
(`partition.py`), and each region that pays is captured like a model of its own (`cut.py`). So whatever makes
a runtime request the original, such as NaN, makes that region alone run in PyTorch.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir

from torchrlopt.errors import LoweringError, RlOptError
from torchrlopt.executors.eager.executor import assemble
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.regions.cut import Cut, Prices
from torchrlopt.executors.registry import Executor, Lowered, Refusals
from torchrlopt.executors.weights.static_part import static_inputs
from torchrlopt.onnx.opsets import ATEN_DOMAIN
from torchrlopt.options import LoweringOptions
from torchrlopt.report import Part
from torchrlopt.torch_private.modes import without_dispatch_modes

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured

_MOST_TRIES = 8
"""Maximum number of times that the graph is cut again because the executor refuses a node of a region."""


def lower(
    executor: Executor,
    model: onnx_ir.Model,
    captured: Captured | None,
    options: LoweringOptions,
    prices: Callable[[], Prices],
) -> Lowered:
    """Build the callable of a graph, in regions if the executor does not support all of it.

    Args:
        executor: runs the graph, or parts of it.
        model: the graph; may be modified.
        captured: where it came from; None for a model read from a file.
        options: the user's options.
        prices: returns what regions save and cost; called only if the executor refuses nodes.

    Raises:
        LoweringError: the executor supports too little of the graph.
        RlOptError: see `Executor.lower`.
    """
    refused = {} if captured is None else executor.refusals(model, captured, options)
    if captured is None or not refused:
        return executor.lower(model, captured, options)
    with without_dispatch_modes():  # inside AOTAutograd's fake mode, constants would be fake tensors
        try:
            return _in_regions(executor, model, captured, options, refused, prices())
        except LoweringError as error:
            reason = error
    try:
        return executor.lower(model, captured, options)
    except RlOptError as error:
        parts = f"run it elsewhere; in parts it does not run here either: {reason}"
        raise type(error)(
            error.what,
            where=error.where,
            expected=error.expected,
            got=error.got,
            todo=parts,
            is_bug=error.is_bug,
        ) from reason


def _in_regions(
    executor: Executor,
    model: onnx_ir.Model,
    captured: Captured,
    options: LoweringOptions,
    refused: Refusals,
    prices: Prices,
) -> RegionsCallable:
    static = static_inputs(captured, options)
    reasons = {str(node.name): f"{_operator_of(node)}: {why}" for node, why in refused.items()}
    refused_calls: dict[str, str] = {}
    for _ in range(_MOST_TRIES):
        parts = Cut(lower_captured(model, captured), static, reasons, refused_calls, prices)
        if not parts.regions:
            raise LoweringError("no region saves more than its borders cost", is_bug=False)
        new: dict[str, str] = {}
        for region in parts.regions:
            found = executor.refusals(region.captured.model, region.captured, options)
            new |= {
                _call_of(node, region.captured): f"{_operator_of(node)}: {why}" for node, why in found.items()
            }
        if new:
            refused_calls |= new
            continue
        for region in parts.regions:
            region.lowered = executor.lower(region.captured.model, region.captured, options)
        rest = assemble(parts.module, static, dataclasses.replace(options, cuda_graphs=False))
        lowered = [region.lowered for region in parts.regions if region.lowered is not None]
        return RegionsCallable(rest, lowered, parts.report(executor.name))
    raise LoweringError("the executor refuses a node of every region", is_bug=False)


def _call_of(node: onnx_ir.Node, captured: Captured) -> str:
    """Name of the ATen call that a node was translated from; values of a call have its name before a dot."""
    name = str(node.name)
    return captured.origins.get(name, name.partition(".")[0])


def _operator_of(node: onnx_ir.Node) -> str:
    """Display name of what a node computes."""
    return node.op_type if node.domain in ("", ATEN_DOMAIN) else f"{node.domain}::{node.op_type}"


class RegionsCallable:
    """A lowered graph that runs in regions.

    Args:
        rest: calls the regions.
        regions: the regions.
        parts: what runs where.

    Attributes:
        parts: see above.
    """

    def __init__(self, rest: Lowered, regions: Sequence[Lowered], parts: tuple[Part, ...]) -> None:
        self.parts = parts
        self._rest = rest
        self._regions = regions
        self._lock = threading.Lock()
        self._seen = self._num_evaluations = 0

    @property
    def num_evaluations(self) -> int:
        """See `registry.Lowered`: a set of weights counts once, however many regions read it."""
        # A callable without state may be a plain function.
        seen = sum(getattr(each, "num_evaluations", 0) for each in (self._rest, *self._regions))
        with self._lock:
            if seen != self._seen:
                self._seen = seen
                self._num_evaluations += 1
            return self._num_evaluations

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the captured graph, in its order."""
        return self._rest(*args)
