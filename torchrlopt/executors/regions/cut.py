"""Cuts a lowered graph: the largest parts that a runtime supports become regions if they are worthwhile.

A region is captured like a model of its own, with the values that it reads as inputs. What is computed from
weights belongs to the region that reads it; if several do, it is computed once, outside of them.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.capture.captured import Captured
from torchrlopt.capture.graph_to_onnx import capture
from torchrlopt.capture.sharing import NewMemory, hint, may_be_view
from torchrlopt.errors import CaptureError, LoweringError
from torchrlopt.executors.lowering.fx_values import ORIGIN, tensor_of
from torchrlopt.executors.lowering.lazy_code import lazy_module
from torchrlopt.executors.lowering.symbols import traced_number
from torchrlopt.executors.regions.partition import rounds
from torchrlopt.executors.registry import Lowered
from torchrlopt.executors.weights.split_fx import reaching_output
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.generated_code import checked
from torchrlopt.ops.emitter import Emitter
from torchrlopt.report import Part
from torchrlopt.torch_private.tensors import FakeTensor

_PASSES = 2
"""How often crossing values are read or written: they are checked for non-finite numbers and copied."""


@dataclasses.dataclass(frozen=True)
class Prices:
    """What regions save and what their borders cost.

    Attributes:
        saved_us: by name of an ONNX node, the time that the runtime saves compared with PyTorch.
        crossing_us: overhead of one call of the runtime: converting arguments to feeds, waking its threads.
        bytes_per_us: memory read bandwidth.
        typical_us: saving of a node that `saved_us` does not list.
    """

    saved_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
    crossing_us: float = 0.0
    bytes_per_us: float = 1e4
    typical_us: float = 0.0

    def saving_us(self, calls: Iterable[fx.Node]) -> float:
        """Time that the nodes behind these calls save in the runtime, not counting borders."""
        return sum(self.saved_us.get(name, self.typical_us) for name in _nodes_of(calls))

    def border_us(self, values: Iterable[fx.Node]) -> float:
        """Cost of calling the runtime and passing these values across the border."""
        return self.crossing_us + _PASSES * sum(map(num_bytes, values)) / self.bytes_per_us


def _nodes_of(calls: Iterable[fx.Node]) -> set[str]:
    """Names of the ONNX nodes that these calls implement."""
    return {name for call in calls for name in call.meta[ORIGIN]}


def num_bytes(node: fx.Node) -> float:
    """Size of a value, with example values for symbolic sizes; 1 if it is not a tensor."""
    value = tensor_of(node)
    return 1.0 if value is None else math.prod(map(hint, value.shape)) * value.dtype.itemsize


class Region(NewMemory):
    """Calls that run together in a runtime, as a function of an FX graph that returns a tuple.

    Args:
        number: of the region.
        calls: in order.
        ahead: calls over weights that only these read, in order.
        inputs: the values that it reads, but for constants.
        outputs: its values that are read elsewhere.

    Attributes:
        captured: the region as an executor takes it; its ATen graph is the original of the region.
        lowered: runs the region, once it has been built.
    """

    __module__ = __name__

    def __init__(
        self,
        number: int,
        calls: Sequence[fx.Node],
        ahead: Sequence[fx.Node],
        inputs: Sequence[fx.Node],
        outputs: Sequence[fx.Node],
    ) -> None:
        self.__name__ = f"region_{number}"
        self.calls = calls
        self.ahead = ahead
        self.inputs = inputs
        self.outputs = outputs
        self.captured: Captured
        self.lowered: Lowered | None = None

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run the region."""
        assert self.lowered is not None, "it is built before the graph is used"
        return self.lowered(*args)


class Cut:
    """A lowered graph in parts.

    Args:
        module: the graph.
        static: names of the placeholders that are weights.
        reasons: why the runtime does not support some ONNX nodes, by name.
        refused: why it does not support some calls, by name.
        prices: what regions save and cost.

    Attributes:
        module: the graph, with one call for each region.
        regions: in the order of their calls.

    Raises:
        LoweringError: a part cannot be captured.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        static: Collection[str],
        reasons: Mapping[str, str],
        refused: Mapping[str, str],
        prices: Prices,
    ) -> None:
        _read_sizes_of_inputs(module.graph)
        graph = module.graph
        self._reasons, self._refused, self._prices = reasons, refused, prices
        once = static_nodes(graph, static)
        # Values that the caller may get hold of are recomputed in every call.
        self._fixed = once - reaching_output(graph)
        self._calls = [node for node in graph.nodes if node.op == "call_function" and node not in once]
        inside = set(self._calls)
        self._first = [node for node in graph.nodes if node.op != "output" and node not in inside]
        self._parts: list[Region | list[fx.Node]] = []
        self.regions: list[Region] = []
        self.module = lazy_module(module, self._with_regions(module))

    def _with_regions(self, module: fx.GraphModule) -> fx.Graph:
        inside = set(self._calls)
        taken: set[fx.Node] = set()
        for node in self._calls:
            if node.args[0] in taken if node.target is operator.getitem else self._is_taken(node):
                taken.add(node)
        round_of = rounds(
            self._calls,
            lambda node: [each for each in node.all_input_nodes if each in inside],
            taken,
            num_bytes,
        )
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        self._copy(self._first, graph, env)
        for number in range(max(round_of.values(), default=-1) + 1):
            members = [node for node in self._calls if round_of[node] == number]
            left = [node for node in members if node not in taken]
            self._copy(left, graph, env)
            self._add_part(left)
            members = [node for node in members if node in taken]
            region, views = _region(members, self._ahead_of(members), len(self.regions))
            if not self._pays(region):
                self._copy(members, graph, env)
                self._add_part(members)
                continue
            self._capture(region, module)
            _call(region, graph, env)
            self._copy(views, graph, env)
            self.regions.append(region)
            self._parts.append(region)
        output = module.graph.output_node()
        graph.output(fx.map_arg(output.args[0], env.__getitem__))
        graph.eliminate_dead_code()  # what is computed in regions instead
        return graph

    def _ahead_of(self, calls: Sequence[fx.Node]) -> list[fx.Node]:
        """The calls over weights that only these calls read."""
        inside = set(calls)
        ahead: list[fx.Node] = []
        for node in reversed(self._first):
            is_call = node.op == "call_function" and self._is_taken(node)
            if is_call and node.all_input_nodes and inside.issuperset(node.users):
                inside.add(node)
                ahead.insert(0, node)
        return ahead

    def _copy(self, nodes: Iterable[fx.Node], graph: fx.Graph, env: dict[fx.Node, fx.Node]) -> None:
        for node in nodes:
            env[node] = graph.node_copy(node, env.__getitem__)

    def _is_taken(self, node: fx.Node) -> bool:
        """Whether the runtime supports a call. Numbers, and copies for the caller, belong to no ONNX node."""
        if not node.meta.get(ORIGIN) or self._reason(node) is not None:
            return False
        return isinstance(node.meta.get("val"), torch.Tensor | tuple | list)

    def _reason(self, node: fx.Node) -> str | None:
        """Why the runtime does not support a call; None if it does."""
        names = node.meta.get(ORIGIN, ())
        return self._refused.get(node.name) or next(
            (self._reasons[n] for n in names if n in self._reasons), None
        )

    def _add_part(self, calls: Sequence[fx.Node]) -> None:
        """Note that PyTorch runs these calls; calls without an ONNX node are not reported."""
        own = [node for node in calls if node.meta.get(ORIGIN)]
        if own and self._parts and isinstance(self._parts[-1], list):
            self._parts[-1] += own
        elif own:
            self._parts.append(own)

    def _pays(self, region: Region) -> bool:
        return bool(region.outputs) and self._prices.saving_us(region.calls) > self._border_us(region)

    def _border_us(self, region: Region) -> float:
        """The overhead of a call of the region; weights are passed only once."""
        varying = [node for node in region.inputs if node not in self._fixed]
        return self._prices.border_us([*varying, *region.outputs])

    def _capture(self, region: Region, module: fx.GraphModule) -> None:
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for node in region.inputs:
            env[node] = graph.placeholder(node.name)
            env[node].meta = dict(node.meta)
        calls = (*region.ahead, *region.calls)
        read = dict.fromkeys(each for node in calls for each in node.all_input_nodes)
        self._copy([each for each in read if each.op == "get_attr"], graph, env)
        self._copy(calls, graph, env)
        graph.output(tuple(env[node] for node in region.outputs))
        static = [at for at, node in enumerate(region.inputs) if node in self._fixed]
        try:
            region.captured = capture(fx.GraphModule(module, checked(graph)), static)
        except CaptureError as error:
            raise LoweringError("a region cannot be captured", got=str(error)) from error

    def report(self, runtime: str) -> tuple[Part, ...]:
        """What runs where and why, in execution order."""
        found = []
        for part in self._parts:
            if isinstance(part, Region):
                saved, border = self._prices.saving_us(part.calls), self._border_us(part)
                reason = f"saves {saved:.0f} us for {border:.0f} us at its borders"
                found.append(Part(runtime, len(_nodes_of(part.calls)), reason))
            else:
                why = dict.fromkeys(filter(None, map(self._reason, part)))
                reason = "; ".join(why) or "too little for a region"
                found.append(Part("eager", len(_nodes_of(part)), reason))
        return tuple(found)


def _region(calls: Sequence[fx.Node], ahead: Sequence[fx.Node], number: int) -> tuple[Region, list[fx.Node]]:
    """The region of these calls, and its views to be taken again outside.

    What a region returns is new memory, so its views are not returned: others take them of what is.
    """
    inside = set(calls)
    views: dict[fx.Node, None] = {}
    outputs: list[fx.Node] = []
    for node in reversed(calls):
        if all(user in inside and user not in views for user in node.users):
            continue
        if may_be_view(node):
            views[node] = None
        else:
            outputs.insert(0, node)
    inside.update(ahead)
    every = (*ahead, *calls)
    read = dict.fromkeys(each for node in every for each in node.all_input_nodes if each not in inside)
    inputs = [each for each in read if each.op != "get_attr"]
    return Region(number, calls, ahead, inputs, outputs), list(reversed(views))


def _call(region: Region, graph: fx.Graph, env: dict[fx.Node, fx.Node]) -> None:
    """Add the call of a region."""
    call = graph.call_function(region, tuple(env[node] for node in region.inputs))
    call.meta["val"] = tuple(node.meta["val"] for node in region.outputs)
    for at, node in enumerate(region.outputs):
        env[node] = graph.call_function(operator.getitem, (call, at))
        env[node].meta = dict(node.meta)


def _read_sizes_of_inputs(graph: fx.Graph) -> None:
    """Compute sizes from those of the inputs: a size read off a value of a region would tear the region."""
    values = [node.meta.get("val") for node in graph.nodes]
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    numbers = [node for node in graph.nodes if isinstance(node.meta.get("val"), torch.SymInt)]
    calls = [node for node in numbers if node.op == "call_function"]
    if mode is None or not calls:
        return
    emitter = Emitter(mode, torch.device("cpu"))
    emitter.graph = graph
    first = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
    with graph.inserting_before(first):
        for node in calls:
            found = traced_number(emitter, node)
            if found is not None and found is not node:
                node.replace_all_uses_with(found)
    graph.eliminate_dead_code()
