"""How much each rounding to bfloat16 adds to the error of the outputs, from a few reverse passes.

To first order, the errors of roundings add: an output changes by the sum of J_i d_i, where d_i is what the
rounding of value i changes and J_i the derivative of the output by it. The elements of d_i are known exactly
(the values are at hand), and their signs are as good as independent. So the expected squared change is the
sum of |J_ij|^2 d_ij^2 over all elements j, and for random signs r, (r' J)_ij^2 estimates |J_ij|^2 for all
roundings at once. A sum over the thousands of elements of a value varies little: few directions suffice.

A weight is read by many rows or pixels, which share its rounding: what it changes is summed over them first,
for each output channel.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.precision.retyped import EXACT, LOW, owner_of
from torchrlopt.executors.weights.static_part import static_nodes
from torchrlopt.ops.traits import MOVES
from torchrlopt.torch_private.pytree import tree_leaves

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Sensitivities:
    """Squared errors of the outputs that single roundings cause, relative to the outputs' mean squares.

    Attributes:
        results: of the result of each call, rounded for all of its readers; 0 where nothing is rounded.
        edges: of an operand of a call, rounded for that call alone; by names of operand and call.
        weights: of the weights that a call reads, all rounded.
        quantised: of both operands of a product or convolution, as 8-bit integers.
    """

    results: Mapping[str, float]
    edges: Mapping[tuple[str, str], float]
    weights: Mapping[str, float]
    quantised: Mapping[str, float] = dataclasses.field(default_factory=dict)


def sensitivities(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    static: Collection[str],
    calls: Collection[fx.Node],
    num_directions: int,
    seed: int,
    quantisable: Collection[fx.Node] = (),
) -> Sensitivities:
    """Estimate all sensitivities.

    Args:
        module: a lowered graph, in float32.
        inputs: its inputs.
        static: names of the placeholders that are the same in every call.
        calls: those that may be lowered.
        num_directions: reverse passes.
        seed: of the directions.
        quantisable: those of the calls that may be computed with 8-bit integers.

    Raises:
        UnsupportedError: an operator cannot be differentiated.
    """
    run = _Run(module, static, calls, quantisable)
    try:
        _reverse(run, inputs, num_directions, torch.Generator().manual_seed(seed))
    except RuntimeError as error:
        raise UnsupportedError("an operator has no derivative", got=str(error).split("\n", 1)[0]) from error
    share = 1.0 / num_directions
    return Sensitivities(
        {name: value * share for name, value in run.results.items()},
        {name: value * share for name, value in run.edges.items()},
        {name: value * share for name, value in run.weights.items()},
        {name: value * share for name, value in run.quantised.items()},
    )


def _reverse(run: _Run, inputs: Sequence[Any], num_directions: int, generator: torch.Generator) -> None:
    with torch.enable_grad():
        outputs = [each for each in tree_leaves(run.run(*inputs)) if _is_differentiable(each)]
        for _ in range(num_directions):
            signs = [_signs(each, generator) for each in outputs]
            # Gradients are consumed by hooks; the leaves accumulate none that anybody reads.
            torch.autograd.backward(outputs, signs, retain_graph=True, inputs=run.leaves)
            for leaf in run.leaves:
                leaf.grad = None


def _signs(output: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random signs, scaled so that squares are relative to the output's mean square."""
    values = output.detach()
    scale = float(values.double().square().sum().sqrt())
    drawn = torch.randint(0, 2, values.shape, generator=generator).to(values) * 2 - 1
    return drawn / scale if scale > 0 else torch.zeros_like(values)


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.requires_grad


class _Run(torch.fx.Interpreter):
    """Runs a graph with hooks that take the squares of gradients times roundings.

    Args:
        module: the graph.
        static: names of the placeholders that are the same in every call.
        calls: those whose operands, weights and results may be rounded.
        quantisable: those of them that may be computed with 8-bit integers.

    Attributes:
        results, edges, weights, quantised: sums over the reverse passes so far, see `Sensitivities`.
        leaves: where reverse passes end.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        static: Collection[str],
        calls: Collection[fx.Node],
        quantisable: Collection[fx.Node],
    ) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._fixed = static_nodes(module.graph, static)
        self._calls, self._quantisable = frozenset(calls), frozenset(quantisable)
        self.results: dict[str, float] = collections.defaultdict(float)
        self.edges: dict[tuple[str, str], float] = collections.defaultdict(float)
        self.weights: dict[str, float] = collections.defaultdict(float)
        self.quantised: dict[str, float] = collections.defaultdict(float)
        self.leaves: list[torch.Tensor] = []
        self._changed: dict[fx.Node, torch.Tensor] = {}  # by the weights of calls with several results
        self._roundings: dict[int, torch.Tensor] = {}
        self._by_pixels: dict[fx.Node, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node; its operands are watched edge by edge, and its result."""
        if n in self._fixed:
            with torch.no_grad():
                return _detached(super().run_node(n))
        if n.op == "placeholder":
            return self._leaf(_detached(super().run_node(n)))
        owner = owner_of(n)
        if owner is not n and owner in self._calls:
            result = super().run_node(n)
            self._watch_result(owner, result, self._changed.get(owner) if n.args[1] == 0 else None)
            return result
        if n not in self._calls:
            return self._leaf(super().run_node(n)) if n.op == "call_function" else super().run_node(n)
        operands = {each: self.env[each] for each in n.all_input_nodes if each not in self._fixed}
        for operand, value in operands.items():
            self.env[operand] = self._watched_edge(value, operand, n)
        result = self._leaf(super().run_node(n))
        self.env.update(operands)
        changed = self._by_weights(n, result, _rounded)
        by_integers = self._by_weights(n, result, quantised_weight) if n in self._quantisable else None
        if changed is not None and isinstance(result, tuple | list):
            self._changed[n] = changed
        self._watch_result(n, result, changed, by_integers)
        return result

    def _leaf(self, result: Any) -> Any:
        """Make results that gradients do not reach leaves, such as rows of an embedding."""
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.is_floating_point() and not each.requires_grad:
                each.requires_grad_()
                self.leaves.append(each)
        return result

    def _watched_edge(self, value: Any, operand: fx.Node, n: fx.Node) -> Any:
        if not _is_differentiable(value):
            return value
        alias = value.view_as(value)

        def hook(gradient: torch.Tensor) -> None:
            self.edges[operand.name, n.name] += _squares(gradient, self._rounding(value))
            if n in self._quantisable:
                by_integers = self._by_pixels.get(n)
                if by_integers is None:
                    by_integers = value.detach() - quantised_pixels(value.detach(), n)
                    self._by_pixels[n] = by_integers
                self.quantised[n.name] += _squares(gradient, by_integers)

        alias.register_hook(hook)
        return alias

    def _watch_result(
        self,
        n: fx.Node,
        result: Any,
        changed: torch.Tensor | None,
        by_integers: torch.Tensor | None = None,
    ) -> None:
        if not _is_differentiable(result):
            return

        def hook(gradient: torch.Tensor) -> None:
            if not self._is_exact(n):
                self.results[n.name] += _squares(gradient, self._rounding(result))
            if changed is not None:
                self.weights[n.name] += _of_shared(gradient, changed, n)
            if by_integers is not None:
                self.quantised[n.name] += _of_shared(gradient, by_integers, n)

        result.register_hook(hook)

    def _is_exact(self, n: fx.Node) -> bool:
        """Whether rounded operands give rounded results; rows of a weight are not rounded yet."""
        return n.target in EXACT and self._fixed.isdisjoint(n.all_input_nodes)

    def _rounding(self, value: torch.Tensor) -> torch.Tensor:
        """What rounding a value changes; the same for all who read it, in all directions."""
        known = self._roundings.get(id(value))  # `env` keeps the value
        if known is None:
            known = _finite(value.detach() - _rounded(value.detach(), None))
            self._roundings[id(value)] = known
        return known

    def _by_weights(
        self, n: fx.Node, exact: Any, rounded: Callable[[torch.Tensor, fx.Node], torch.Tensor]
    ) -> torch.Tensor | None:
        """What the result of a call changes by if the weights that it reads are rounded."""
        weights = {each: self.env[each] for each in n.all_input_nodes if each in self._fixed}
        floats = {each: value for each, value in weights.items() if _is_float(value)}
        if not floats or n.target in MOVES:  # what is moved is rounded as a result
            return None
        with torch.no_grad():
            self.env.update({each: rounded(value, n) for each, value in floats.items()})
            changed = _finite(_first(super().run_node(n)) - _first(exact))
            self.env.update(floats)
        return changed


def _squares(gradient: torch.Tensor, change: torch.Tensor) -> float:
    return float((gradient * change).square_().sum())


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def _first(value: Any) -> torch.Tensor:
    first: torch.Tensor = value[0] if isinstance(value, tuple | list) else value
    return first


def _detached(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.clone() if value.is_inference() else value.detach()


def _rounded(value: torch.Tensor, _: Any) -> torch.Tensor:
    return value.to(LOW).to(value.dtype)


def _finite(change: torch.Tensor) -> torch.Tensor:
    """Take what is infinite, or is by rounding, as unchanged: it is a mask, which softmax ignores."""
    return change.nan_to_num_(0.0, 0.0, 0.0)


def quantised_pixels(value: torch.Tensor, n: fx.Node) -> torch.Tensor:
    """Quantise as csrc/kernels/int8.h does: each pixel, or row of a product, by its own range with a zero."""
    channels = 1 if n.target in _CONVOLUTIONS else -1
    low, high = (
        value.amin(channels, keepdim=True).clamp(max=0),
        value.amax(channels, keepdim=True).clamp(min=0),
    )
    scale = ((high - low) / _BYTE).clamp(min=torch.finfo(value.dtype).tiny)
    zero = (-low / scale).round()
    return ((value / scale + zero).round().clamp(0, _BYTE) - zero) * scale


def quantised_weight(value: torch.Tensor, n: fx.Node) -> torch.Tensor:
    """Quantise symmetrically, each output by its own scale; a bias stays."""
    if value.dim() < 2:
        return value
    if n.target in _CONVOLUTIONS:
        over = tuple(range(1, value.dim()))
    else:
        over = (-1,) if n.target is aten.linear.default else (-2,)
    scale = value.abs().amax(over, keepdim=True).clamp(min=torch.finfo(value.dtype).tiny) / _SIGNED
    return (value / scale).round() * scale


_BYTE, _SIGNED = 255, 127


def _of_shared(gradient: torch.Tensor, changed: torch.Tensor, n: fx.Node) -> float:
    """Squares of sums over everything that shares a weight: all but the channels."""
    channel = 1 if n.target in _CONVOLUTIONS and changed.dim() > 2 else -1
    product = (gradient * changed).movedim(channel, -1)
    return float(product.reshape(-1, product.shape[-1]).sum(0).square().sum())


_CONVOLUTIONS = frozenset(
    {aten.convolution.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default}
)
