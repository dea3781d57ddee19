"""A region in the form that an executor takes: a separate graph with its own arguments and results."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection
from typing import Any, NoReturn

import onnx_ir
import torch
from torch import fx

from torchrlopt.capture.captured import Captured
from torchrlopt.capture.sharing import NewMemory
from torchrlopt.errors import RlOptError
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.executors.regions.cut import Region
from torchrlopt.executors.regions.stitch import RegionCall, Stitched
from torchrlopt.executors.weights.split_fx import reaching_output
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.generated_code import checked


class LeaveRegionsError(Exception):
    """A runtime requests the original of its region: the original of the whole graph runs instead."""


class _LeaveRegions(NewMemory):
    """Placeholder in a graph for a region that cannot run in PyTorch."""

    __module__ = __name__
    __name__ = "leave_regions"

    def __call__(self, *_: Any) -> NoReturn:
        raise LeaveRegionsError


class _InPyTorch(NewMemory):
    """A region in PyTorch, for calls that its runtime does not support; built in the first such call.

    Once the user's custom operators have run, the whole graph must not be restarted, because their side
    effects are unknown.

    Args:
        model: the region.
    """

    __module__ = __name__
    __name__ = "region_in_pytorch"

    def __init__(self, model: onnx_ir.Model) -> None:
        self._model = model
        self._module: fx.GraphModule | None = None

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        """Run; raises LeaveRegionsError if PyTorch cannot lower the region, for example if sizes vary."""
        module = self._module
        if module is None:
            try:
                module = self._module = lower_model(self._model.clone())
            except RlOptError as error:
                raise LeaveRegionsError from error
        return tuple(each.clone(memory_format=torch.contiguous_format) for each in module(*args))


@dataclasses.dataclass(frozen=True)
class Subject:
    """The input of `Executor.lower` for one region.

    Attributes:
        call: the function that will call the lowered region.
        model: the region's model.
        captured: its arguments and results.
    """

    call: RegionCall
    model: onnx_ir.Model
    captured: Captured


def subjects_of(
    stitched: Stitched, model: onnx_ir.Model, static: Collection[str], begins_anew: bool
) -> list[Subject]:
    """The regions of a graph, in the order of their calls.

    Args:
        stitched: the graph.
        model: the model that was cut.
        static: names of the graph's inputs that are weights.
        begins_anew: whether the whole original runs if a runtime requests the original of its region;
            otherwise only the region runs in PyTorch, if possible.
    """
    graph = stitched.module.graph
    # Values that the caller may get hold of are recomputed in every call.
    fixed = static_nodes(graph, static) - reaching_output(graph)
    return [_subject(node, model, fixed, begins_anew) for node in stitched.calls]


def _subject(node: fx.Node, model: onnx_ir.Model, fixed: Collection[fx.Node], begins_anew: bool) -> Subject:
    call = node.target
    assert isinstance(call, RegionCall)
    aten = fx.Graph()
    static = set()
    own = _model_of(call.region, model)
    for value, operand in zip(own.graph.inputs, node.args, strict=True):
        assert isinstance(operand, fx.Node)
        given = aten.placeholder(f"given_{len(aten.nodes)}")
        given.meta["val"] = operand.meta["val"]
        value.name = given.name
        if operand in fixed:
            static.add(given.name)
    function = _LeaveRegions() if begins_anew else _InPyTorch(own)
    whole = aten.call_function(function, tuple(aten.nodes))
    whole.meta["val"] = call.results
    results = []
    for at, fake in enumerate(call.results):
        results.append(aten.call_function(operator.getitem, (whole, at)))
        results[-1].meta["val"] = fake
    aten.output(tuple(results))
    captured = Captured(
        model=own,
        aten=fx.GraphModule(torch.nn.Module(), checked(aten)),
        static_inputs=frozenset(static),
        constants={},
        values={},
        origins={},
        opaque=(),
        fx_values={},
        groups={},
    )
    return Subject(call, own, captured)


def _model_of(region: Region, model: onnx_ir.Model) -> onnx_ir.Model:
    read = {value for node in region.nodes for value in node.inputs if value is not None}
    initializers = [value for value in model.graph.initializers.values() if value in read]
    view = onnx_ir.GraphView(
        region.inputs,
        region.outputs,
        nodes=region.nodes,
        initializers=initializers,
        opset_imports=dict(model.graph.opset_imports),
        name=model.graph.name,
    )
    return onnx_ir.Model(view.clone(), ir_version=model.ir_version)
