"""Reads the clock between the calls of a lowered graph: how long each call takes within the program.

The calls run in a copy of the graph that reads the clock after every call (40 ns on a CPU), so layouts,
caches, memory reuse and Python's dispatch overhead match the original. On a CUDA device every reading
synchronises, so a call is charged with its launch plus its kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import fx

from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.device_clock import Clock
from torchrlopt.executors.eager.executor import EagerCallable
from torchrlopt.executors.registry import Lowered
from torchrlopt.generated_code import checked

_CALLS = ("call_function", "call_method", "call_module")


class Stamped:
    """A lowered graph that reports when each of its calls ended.

    Args:
        lowered: from the eager executor.
        clock: of the device that the graph runs on.

    Attributes:
        calls: the timed calls.
        origins: for each timed call, the names of the ONNX nodes it implements; empty if it only moves data
            between the others.
        sources: for each timed call, positions of the timed calls whose results it reads.

    Raises:
        UnsupportedError: the callable of another executor, which runs as a whole.
    """

    def __init__(self, lowered: Lowered, clock: Clock) -> None:
        if not isinstance(lowered, EagerCallable):
            raise UnsupportedError("only the eager executor runs call by call", got=type(lowered).__name__)
        self._lowered = lowered
        self._clock = clock
        main = lowered.main
        self.calls = [node for node in main.graph.nodes if node.op in _CALLS]
        self.origins = [lowered.origins.get(node.name, ()) for node in self.calls]
        position = {node: index for index, node in enumerate(self.calls)}
        self.sources = [
            [position[source] for source in node.all_input_nodes if source in position] for node in self.calls
        ]
        self._module = _with_clock(main, clock)

    def __call__(self, args: Sequence[Any]) -> tuple[list[int], int]:
        """Run once.

        Args:
            args: inputs of the captured graph.

        Returns:
            Nanoseconds of each timed call, including the clock reading, and of the whole run.
        """
        start = self._clock()
        _, stamps = self._module.forward(*self._lowered.arguments(args))
        end = self._clock()
        return [after - before for before, after in itertools.pairwise(stamps)], end - start


def _with_clock(main: fx.GraphModule, clock: Clock) -> fx.GraphModule:
    """The graph with a clock reading before the first call and after every call."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    stamps: list[fx.Node] = []
    for node in main.graph.nodes:
        is_call = node.op in _CALLS
        if is_call and not stamps:
            stamps.append(graph.call_function(clock))
        if node.op == "output":
            graph.output((fx.map_arg(node.args[0], copies.__getitem__), stamps))
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if is_call:
            stamps.append(graph.call_function(clock))
    return fx.GraphModule(main, checked(graph))
