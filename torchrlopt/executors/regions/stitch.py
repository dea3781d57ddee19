"""The ATen graph of a cut model: one call per region, original and converted calls for the rest.

A region is first lowered like everything else, which gives the dtypes and sizes of its results. Then one call
replaces it, and its lowered nodes become dead code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from torch import fx

from torchrlopt.capture.sharing import NewMemory
from torchrlopt.errors import LoweringError
from torchrlopt.executors.lowering.onnx_to_aten import Lowering, lower_captured
from torchrlopt.executors.regions.cut import Cut, Region
from torchrlopt.executors.registry import Lowered
from torchrlopt.ops.emitter import Emitter, Entry, Ints

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured


class RegionCall(NewMemory):
    """A region as a function of an FX graph: takes the region's inputs, returns the tuple of its outputs.

    Attributes:
        region: the region to run.
        results: contiguous fake tensors for its outputs.
        lowered: runs the region, once it has been built.
    """

    __module__ = __name__

    def __init__(self, region: Region, number: int) -> None:
        self.__name__ = f"region_{number}"
        self.region = region
        self.results: tuple[torch.Tensor, ...] = ()
        self.lowered: Lowered | None = None

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run the region."""
        assert self.lowered is not None, "it is built before the graph is used"
        return self.lowered(*args)


@dataclasses.dataclass(frozen=True)
class Stitched:
    """A graph with calls of regions.

    Attributes:
        module: the ATen graph.
        calls: the nodes that call regions, in order.
    """

    module: fx.GraphModule
    calls: tuple[fx.Node, ...]


def stitch(model: onnx_ir.Model, captured: Captured, parts: Cut) -> Stitched:
    """Lower a cut model.

    Raises:
        LoweringError: a part cannot be lowered, or the rest needs a value that is internal to a region.
    """

    def make(model: onnx_ir.Model, emitter: Emitter, captured: Captured) -> Lowering:
        return _Stitching(model, emitter, captured, parts)

    module = lower_captured(model, captured, make)
    calls = tuple(node for node in module.graph.nodes if isinstance(node.target, RegionCall))
    revived = [node.name for node in module.graph.nodes if node.meta.get(_INSIDE)]
    if revived:
        raise LoweringError("a value of a region is needed outside", got=revived[0])
    return Stitched(module, calls)


_INSIDE = "rlopt_inside_region"
"""Key in the `meta` of nodes that a region's call replaces."""


class _Stitching(Lowering):
    """A lowering in which each region becomes one call."""

    def __init__(self, model: onnx_ir.Model, emitter: Emitter, captured: Captured, parts: Cut) -> None:
        super().__init__(model, emitter, captured)
        self.parts = parts
        self.regions = {node: region for region in parts.regions for node in region.taken}
        self.exported = {value for region in parts.regions for value in region.outputs}
        self.inside: Region | None = None
        self.finished: set[Region] = set()
        assert self.groups is not None
        by_name = {str(node.name): node for node in model.graph}

        def is_torn(names: Collection[str]) -> bool:
            places = {self.parts.places[by_name[name]] for name in names if name in by_name}
            return len(places) > 1 or any(len(each) != 1 for each in places)

        self.groups.forget_torn(is_torn)

    def add_nodes(self) -> None:
        """Lower regions and other nodes in their order."""
        for unit in self.parts.order:
            if isinstance(unit, Region):
                self._call(unit)
                continue
            group = self.groups.of(unit) if self.groups is not None else None
            if unit not in self.done and (group is None or unit is group.members[-1]):
                self._lower(unit)

    def _lower(self, node: onnx_ir.Node) -> None:
        region = self.regions.get(node)
        if region is None or region is self.inside:
            super()._lower(node)
        else:
            self._call(region)

    def _is_pending(self, value: onnx_ir.Value) -> bool:
        """Also true for values internal to a region: readers use something else, or are converted."""
        producer = value.producer()
        region = self.regions.get(producer) if producer is not None else None
        is_hidden = region is not None and region is not self.inside and value not in self.exported
        return (is_hidden and value not in self.entries) or super()._is_pending(value)

    def _call(self, region: Region) -> None:
        if region in self.finished:
            return
        if self.inside is not None:
            raise LoweringError("a region needs a later one", where=str(region.taken[0].name))
        operands = [self._operand_of(value) for value in region.inputs]
        entries, scalars, done = dict(self.entries), dict(self.scalars), set(self.done)
        last = next(iter(reversed(self.emitter.graph.nodes)), None)
        self.inside = region
        for node in region.nodes:
            if node not in self.done:
                self._lower(node)
        fakes = [self.emitter.fake_of(self.emitter.tensor(self.entry(value))) for value in region.outputs]
        self.inside = None
        for node in reversed(self.emitter.graph.nodes):
            if node is last:
                break
            if node.op == "call_function":
                node.meta[_INSIDE] = True
        # Do not use values from inside the region outside: that would keep the inside alive.
        self.entries, self.scalars, self.done = entries, scalars, done | set(region.taken)
        self.finished.add(region)
        self._emit(region, operands, fakes)

    def _operand_of(self, value: onnx_ir.Value) -> fx.Node:
        """The operand of a region; a size stays a number."""
        entry: Entry = self.entry(value)
        if isinstance(entry, Ints) and entry.rank == 0 and isinstance(entry.elements[0], fx.Node):
            return entry.elements[0]
        return self.emitter.tensor(entry)

    def _emit(self, region: Region, operands: list[fx.Node], fakes: list[torch.Tensor]) -> None:
        call = RegionCall(region, len(self.finished) - 1)
        with self.emitter.fake():
            call.results = tuple(
                torch.empty(fake.shape, dtype=fake.dtype, device=fake.device) for fake in fakes
            )
        node = self.emitter.graph.call_function(call, tuple(operands))
        node.meta["val"] = call.results
        for index, value in enumerate(region.outputs):
            self.entries[value] = self.emitter.item(node, index)
