"""Lowers a graph of which a runtime supports parts: those run there, the rest in PyTorch.

An executor reports the nodes it does not support (`Executor.refusals`). If there are none it gets the whole
graph, otherwise the regions that pay (`cut.py`), each as a separate graph; the rest is lowered as in the
eager executor.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch

from torchrlopt.errors import LoweringError, RlOptError
from torchrlopt.executors.eager.executor import assemble
from torchrlopt.executors.lowering.original_calls import nodes_by_origin
from torchrlopt.executors.regions.cut import Cut, Region, cut
from torchrlopt.executors.regions.prices import Prices
from torchrlopt.executors.regions.stitch import stitch
from torchrlopt.executors.regions.subject import LeaveRegionsError, Subject, subjects_of
from torchrlopt.executors.registry import Executor, Lowered, Refusals
from torchrlopt.executors.weights.static_part import static_inputs
from torchrlopt.onnx.opsets import ATEN_DOMAIN
from torchrlopt.options import Options
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
    options: Options,
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
            priced = dataclasses.replace(prices(), sizes=_sizes(captured))
            return _in_regions(executor, model, captured, options, refused, priced)
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
    options: Options,
    refused: Refusals,
    prices: Prices,
) -> RegionsCallable:
    model.graph.sort()
    placeholders = captured.aten.graph.find_nodes(op="placeholder")
    scalars = {node.name for node in placeholders if not isinstance(node.meta.get("val"), torch.Tensor)}
    static = static_inputs(captured, options)
    fixed = static | captured.constants.keys()
    by_name = {str(node.name): node for node in model.graph}
    reasons = dict(refused)

    def pays(region: Region) -> bool:
        return bool(region.outputs) and prices.saving_us(region.taken) > _border_us(region, fixed, prices)

    for _ in range(_MOST_TRIES):
        left = _with_groups(model, captured, reasons)
        parts = cut(model, left, fixed, scalars, prices.num_bytes, pays)
        if not parts.regions:
            raise LoweringError("no region saves more than its borders cost", is_bug=False)
        stitched = stitch(model, captured, parts)
        subjects = subjects_of(stitched, model, static, not _calls_the_users(captured))
        found = [executor.refusals(each.model, each.captured, options) for each in subjects]
        new = {by_name[str(node.name)]: why for each in found for node, why in each.items()}
        if new:
            reasons |= new
            continue
        for each in subjects:
            each.call.lowered = executor.lower(each.model, each.captured, options)
        told = _told(executor.name, parts, reasons, fixed, prices)
        rest = assemble(stitched.module, static, dataclasses.replace(options, cuda_graphs=False))
        return RegionsCallable(rest, subjects, captured.aten.forward, told)
    raise LoweringError("the executor refuses a node of every region", is_bug=False)


def _calls_the_users(captured: Captured) -> bool:
    """Whether the graph calls custom operators of the user's, which may have side effects."""
    return any(not name.startswith("aten.") for name in captured.opaque)


def _sizes(captured: Captured) -> dict[str, int]:
    """Example values of all symbolic sizes of a graph, by their expressions."""
    found: dict[str, int] = {}
    for node in captured.aten.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            symbol: Any = size
            if isinstance(size, torch.SymInt) and symbol.node.has_hint():
                found[str(symbol.node.expr)] = int(symbol.node.hint)
    return found


def _with_groups(
    model: onnx_ir.Model, captured: Captured, refused: Collection[onnx_ir.Node]
) -> set[onnx_ir.Node]:
    """The refused nodes and the other nodes of their ATen calls, because a call is restored whole."""
    left = set(refused)
    for members in nodes_by_origin(model, captured).values():
        if any(node in refused for node in members):
            left.update(node for node in members if node.op_type != "Constant")
    return left


def _border_us(region: Region, fixed: Collection[str], prices: Prices) -> float:
    """The overhead of a call of the region; weights are passed only once."""
    return prices.border_us([*(each for each in region.inputs if each.name not in fixed), *region.outputs])


def operator_of(node: onnx_ir.Node) -> str:
    """Display name of what a node computes."""
    return node.op_type if node.domain in ("", ATEN_DOMAIN) else f"{node.domain}::{node.op_type}"


def _told(
    name: str, parts: Cut, reasons: Refusals, fixed: Collection[str], prices: Prices
) -> tuple[Part, ...]:
    """What runs where and why, in execution order; consecutive nodes that PyTorch runs form one part."""
    told: list[Part] = []
    between: list[onnx_ir.Node] = []

    def tell_between() -> None:
        run = [node for node in between if node not in parts.once]
        if run:
            why = dict.fromkeys(f"{operator_of(node)}: {reasons[node]}" for node in run if node in reasons)
            told.append(Part("eager", len(run), "; ".join(why) or "too little for a region"))
        between.clear()

    for unit in parts.order:
        if isinstance(unit, onnx_ir.Node):
            between.append(unit)
            continue
        tell_between()
        saved, border = prices.saving_us(unit.taken), _border_us(unit, fixed, prices)
        told.append(Part(name, len(unit.taken), f"saves {saved:.0f} us for {border:.0f} us at its borders"))
    tell_between()
    return tuple(told)


class RegionsCallable:
    """A lowered graph that runs in regions.

    Args:
        rest: calls the regions.
        subjects: the regions.
        original: runs if a runtime requests the original of its region.
        parts: what runs where.

    Attributes:
        parts: see above.
    """

    def __init__(
        self,
        rest: Lowered,
        subjects: Sequence[Subject],
        original: Callable[..., Sequence[Any]],
        parts: tuple[Part, ...],
    ) -> None:
        self.parts = parts
        self._rest = rest
        self._regions = [each.call.lowered for each in subjects if each.call.lowered is not None]
        self._original = original
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
        try:
            return self._rest(*args)
        except LeaveRegionsError:
            return tuple(self._original(*args))
