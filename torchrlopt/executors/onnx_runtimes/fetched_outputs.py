"""Turns a session's results into the outputs of the captured graph, in its order and layout.

If the original returns views of an input or of another output, those are taken here, because a runtime
copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.executors.lowering.output_layout import OutputEmitter
from torchrlopt.executors.lowering.symbols import traced_number
from torchrlopt.generated_code import checked
from torchrlopt.ops.emitter import Emitter
from torchrlopt.torch_private.tensors import FakeTensor


class FetchedOutputs:
    """Arranges fetched tensors in the order and layout of the captured graph's outputs.

    Args:
        aten: the captured graph. Outputs that are tensors and not inputs are fetched, each once.
        position: maps its inputs to positions among the arguments of a call.

    Attributes:
        read: the arguments that outputs are, or are views of.

    Raises:
        UnsupportedError: an output is not a tensor.
    """

    def __init__(self, aten: fx.GraphModule, position: dict[str, int]) -> None:
        (output,) = aten.graph.find_nodes(op="output")
        values = [node.meta.get("val") for node in aten.graph.nodes]
        fakes = [value for value in values if isinstance(value, FakeTensor)]
        if not fakes:
            raise LoweringError("the captured graph has no fake values")
        emitter = Emitter(fakes[0].fake_mode, torch.device("cpu"))
        inputs: dict[str, fx.Node] = {}
        for node in aten.graph.find_nodes(op="placeholder"):
            inputs[node.name] = emitter.graph.placeholder(node.name)
            inputs[node.name].meta["val"] = node.meta.get("val")
        outputs = OutputEmitter(emitter, inputs, lambda node: traced_number(emitter, node))
        results: dict[fx.Node, fx.Node] = {}
        for source in output.all_input_nodes:
            value = source.meta.get("val")
            if source.op == "placeholder":
                results[source] = inputs[source.name]
            elif isinstance(value, torch.Tensor):
                fetched = emitter.graph.placeholder(f"fetched_{source.name}")
                with emitter.fake():
                    fetched.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
                view = outputs.view_of_input(source)
                results[source] = fetched if view is None else view
            else:
                raise UnsupportedError("an output of the graph is no tensor", where=source.name)
        emitter.graph.output(fx.map_arg(output.args[0], outputs.matched(results).__getitem__))
        emitter.graph.eliminate_dead_code()
        self.read: list[int] = []
        for name, node in inputs.items():
            if node.users:
                self.read.append(position[name])
            else:
                emitter.graph.erase_node(node)
        (made,) = emitter.graph.find_nodes(op="output")
        are_in_order = tuple(made.args[0]) == tuple(emitter.graph.find_nodes(op="placeholder"))
        self._are_fetches = are_in_order and not self.read  # the placeholders include those of `read`
        self._arrange = fx.GraphModule({}, checked(emitter.graph)).forward

    def __call__(self, fetches: Sequence[torch.Tensor], read: Sequence[Any]) -> tuple[Any, ...]:
        """Args: the session's results; the arguments in `read`."""
        if self._are_fetches:
            return tuple(fetches)
        return tuple(self._arrange(*read, *fetches))
