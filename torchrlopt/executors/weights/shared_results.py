"""Evaluates the prologues of several forms of one graph, each expression over equal weights once.

Forms that differ in the types of some calls pack the weights of all others alike, and fold all of them alike.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import fx

from torchrlopt.torch_private.tensors import version_of

aten = torch.ops.aten


class _Result(NamedTuple):
    """An operand of a call, by the number of its expression."""

    number: int


class SharedResults:
    """Results of expressions over weights, for as long as several forms of a graph are evaluated."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, Any] = {}
        self._leaves: list[Any] = []  # alive, so that no other tensor takes their address

    def evaluate(self, prologue: fx.GraphModule, *weights: torch.Tensor) -> tuple[Any, ...]:
        """Return the results of a prologue, of which only what is not known yet is computed.

        Kept are those results, and weights folded in float64: what else a prologue computes takes more memory
        than time.

        Args:
            prologue: see `Split`.
            weights: its arguments.
        """
        numbers: dict[fx.Node, int] = {}
        given = iter(weights)
        for node in prologue.graph.nodes:
            if node.op == "placeholder":
                numbers[node] = self._of_leaf(next(given))
            elif node.op == "get_attr":
                numbers[node] = self._of_leaf(operator.attrgetter(str(node.target))(prologue))
            elif node.op == "call_function":
                args = fx.map_arg((node.args, node.kwargs), lambda each: _Result(numbers[each]))
                # As text, 1, 1.0 and True are told apart.
                numbers[node] = self._numbers.setdefault((node.target, repr(args)), len(self._numbers))
        results = prologue.graph.output_node().all_input_nodes
        needed: set[fx.Node] = set()
        waiting = list(results)
        while waiting:
            node = waiting.pop()
            if node not in needed and numbers[node] not in self._known:
                needed.add(node)
                waiting += node.all_input_nodes
        calls = prologue.graph.nodes
        env = {n: self._known.get(numbers[n]) for n in calls if n.op == "call_function" and n not in needed}
        run = _Keeping(prologue, {node for node in needed if node in results or _is_folded(node)})
        values: tuple[Any, ...] = run.run(*weights, initial_env=env)
        self._known |= {numbers[node]: value for node, value in run.kept.items()}
        return values

    def _of_leaf(self, leaf: Any) -> int:
        if not isinstance(leaf, torch.Tensor) or leaf.is_inference():  # changes of it would go unnoticed
            return self._numbers.setdefault(object(), len(self._numbers))
        self._leaves.append(leaf)
        layout = leaf.shape, leaf.stride(), leaf.dtype, leaf.is_neg(), leaf.is_conj()
        key = leaf.data_ptr(), version_of(leaf), *layout
        return self._numbers.setdefault(key, len(self._numbers))


def _is_folded(node: fx.Node) -> bool:
    return node.target is aten._to_copy.default and node.kwargs.get("dtype") is torch.float32


class _Keeping(fx.Interpreter):
    """Keeps the values of some nodes."""

    def __init__(self, module: fx.GraphModule, wanted: set[fx.Node]) -> None:
        super().__init__(module)
        self.extra_traceback = False  # report errors unchanged
        self._wanted = wanted
        self.kept: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node."""
        value = super().run_node(n)
        if n in self._wanted:
            self.kept[n] = value
        return value
