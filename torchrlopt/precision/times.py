"""Times of calls in both types: each kernel of two built graphs is timed where it stands.

A kernel may compute several calls. Its time is shared out among them in proportion to their arithmetic and
memory, since only calls of a graph can be lowered, not parts of kernels.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from torchrlopt.executors.device_clock import Clock, clock_of
from torchrlopt.executors.eager.executor import EagerCallable
from torchrlopt.executors.lowering.fx_values import ORIGIN, static_shape
from torchrlopt.precision.state import Times
from torchrlopt.torch_private.pytree import tree_leaves

_ROUNDS = 5
"""Most calls of each graph, of which each kernel's fastest counts."""

_ENOUGH_NS = 100e6
"""After so long, two calls are enough: kernels of the same sizes, which large graphs repeat, count as one."""

_FLOPS_PER_US, _BYTES_PER_US = 120e3, 50e3
"""Of a typical core; they only share out measured times."""


def measured_times(
    calls: Sequence[fx.Node],
    high: EagerCallable,
    low: EagerCallable | None,
    integers: EagerCallable | None,
    quantisable: Collection[fx.Node],
    inputs: Sequence[Any],
) -> Times:
    """Time all calls.

    Args:
        calls: of the lowered graph.
        high: the graph in float32.
        low: the graph with all of these calls in bfloat16; None if that is no choice.
        integers: the same with some of them computed with 8-bit integers; None if there are none.
        quantisable: those.
        inputs: of both.
    """
    shares = {each: work_us(each) for each in calls}
    times = Times(*({} if each is None else _of_calls(shares, each, inputs) for each in (high, low)))
    if integers is None:
        return times
    found, names = _of_calls(shares, integers, inputs), [each.name for each in quantisable]
    return dataclasses.replace(times, quantised={name: found.get(name, 0.0) for name in names})


def _of_calls(
    shares: Mapping[fx.Node, float], built: EagerCallable, inputs: Sequence[Any]
) -> dict[str, float]:
    of_origin: dict[str, list[fx.Node]] = collections.defaultdict(list)
    for call in shares:
        for name in call.meta.get(ORIGIN, ()):
            of_origin[name].append(call)
    found: dict[str, float] = collections.defaultdict(float)
    for kernel, us in _kernel_us(built, inputs).items():
        names = built.origins.get(kernel, ())
        sharing = list(dict.fromkeys(call for name in names for call in of_origin[name]))
        total = sum(shares[each] for each in sharing)
        for each in sharing:
            found[each.name] += us * shares[each] / total
    return found


def _kernel_us(built: EagerCallable, inputs: Sequence[Any]) -> dict[str, float]:
    arguments = built.arguments(inputs)
    device = next((each.device for each in inputs if isinstance(each, torch.Tensor)), torch.device("cpu"))
    clock = clock_of(device)
    timed, start = _Timed(built.main, clock), clock()
    with torch.no_grad():
        for number in range(_ROUNDS):
            timed.run(*arguments)
            if number > 0 and clock() - start > _ENOUGH_NS:
                break
    return {name: min(timed.us[kind]) for name, kind in timed.kinds.items()}


class _Timed(fx.Interpreter):
    """Times each call of a graph, in microseconds.

    Args:
        module: the graph.
        clock: in nanoseconds.

    Attributes:
        us: times of each kind of call: operator, sizes and numbers.
        kinds: of each node that calls.
    """

    def __init__(self, module: fx.GraphModule, clock: Clock) -> None:
        super().__init__(module)
        self._clock = clock
        self.us: dict[Hashable, list[float]] = collections.defaultdict(list)
        self.kinds: dict[str, Hashable] = {}
        self._node = ""

    def run_node(self, n: fx.Node) -> Any:
        """Run a node."""
        self._node = n.name
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Time a call."""
        kind = self.kinds[self._node] = (target, *map(_kind, tree_leaves((args, kwargs))))
        start = self._clock()
        result = target(*args, **kwargs)
        self.us[kind].append((self._clock() - start) / 1e3)
        return result


def _kind(leaf: Any) -> Hashable:
    """What the time of a call depends on."""
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    return leaf.shape, leaf.dtype, leaf.stride() if leaf.layout is torch.strided else None


def work_us(call: fx.Node) -> float:
    """Time of a call by its arithmetic and memory on a typical core, in microseconds."""
    values = [node.meta.get("val") for node in (call, *call.all_input_nodes)]
    moved = sum(_bytes(each) for each in values)
    count = flop_registry.get(getattr(call.target, "overloadpacket", None))
    flops = 0.0
    if count is not None and all(static_shape(each) is not None for each in (call, *call.all_input_nodes)):
        shown = fx.node.map_arg((call.args, call.kwargs), lambda node: node.meta["val"])
        flops = count(*shown[0], **shown[1], out_val=call.meta["val"])
    return 0.1 + float(flops) / 2 / _FLOPS_PER_US + moved / _BYTES_PER_US


def _bytes(value: Any) -> float:
    tensors: Iterable[Any] = value if isinstance(value, tuple | list) else (value,)
    shapes = [each.shape for each in tensors if isinstance(each, torch.Tensor)]
    return sum(4.0 * math.prod(dim for dim in shape if isinstance(dim, int)) for shape in shapes)
