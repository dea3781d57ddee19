"""Estimates how far a graph amplifies rounding errors, by running it with noise.

Every number that arithmetic reads or produces is perturbed at random by as much as rounding may change it
(Monte Carlo arithmetic, Parker 1997). The outputs then change by as much as two correct ways to compute them
may differ: hardly at all if the graph is well-conditioned, in all digits if sums cancel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from torchrlopt.judge import differences
from torchrlopt.judge.float64 import MOVES, InOneDtype
from torchrlopt.judge.tolerances import TOLERANCES
from torchrlopt.torch_private.pytree import tree_flatten, tree_leaves, tree_unflatten

_AMPLITUDE = 16.0
"""Noise in units of the largest rounding error; its effect is divided by the same factor.

If errors have a threshold, such as a relu's, noise of one unit often leaves everything on one side of it.
"""

MOST_PAIRS = 3
"""Pairs of runs with opposite noise: an error on only one side of a threshold shows in one of the two."""


class Carried(NamedTuple):
    """An estimate of the rounding errors in one output; 0 (strict) if the graph does not run."""

    rmse: float = 0.0
    largest: float = 0.0


class Conditioning:
    """The rounding errors that one graph carries for one set of inputs. Runs the graph on first use.

    Args:
        aten: the graph.
        inputs: its inputs.
        may_underflow: whether numbers below the smallest normal one may also be flushed to 0, as in many
            kernels: what a softmax leaves far from its largest number then has no defined order.
    """

    def __init__(self, aten: fx.GraphModule, inputs: Sequence[Any], may_underflow: bool = False) -> None:
        self._aten, self._inputs = aten, inputs
        self._may_underflow = may_underflow
        self._pairs: list[Sequence[Any]] = []

    def pairs(self, index: int) -> Iterator[Sequence[Any]]:
        """Yield pair after pair of one output's values under opposite noise; nothing if the runs fail."""
        for number in range(MOST_PAIRS):
            if number == len(self._pairs):
                self._pairs.append(self._run(number))
            if not self._pairs[number]:
                return
            yield [outputs[index] for outputs in self._pairs[number]]

    def carried(self, index: int, reference: torch.Tensor, num_pairs: int = 1) -> Carried:
        """The estimate for a whole output."""
        found = differences.Errors()
        for noisy in itertools.chain.from_iterable(itertools.islice(self.pairs(index), num_pairs)):
            for _, _, error in carried_blocks(reference, noisy):
                found.add(error)
        return Carried(found.rmse, found.largest) if math.isfinite(found.rmse) else Carried()

    def flipped_by_noise(self, index: int, integers: torch.Tensor) -> torch.Tensor:
        """Return a mask of the elements of an integer or bool output that noise changes."""
        found = torch.zeros_like(integers, dtype=torch.bool)
        for noisy in itertools.chain.from_iterable(self.pairs(index)):
            found |= noisy != integers
        return found

    def _run(self, number: int) -> Sequence[Any]:
        try:
            leaves = itertools.chain(self._inputs, *map(_leaves, self._aten.graph.nodes))
            dtype = torch.float64 if any(_eps_of(leaf) == _WIDE for leaf in leaves) else torch.float32
            with torch.no_grad():
                runs = [_WithNoise(self._aten, dtype, number, sign, self._may_underflow) for sign in (1, -1)]
                return [each.run(*self._inputs) for each in runs]
        except Exception:  # noqa: BLE001  # the user's operators may refuse other numbers in any way
            return ()


def carried_blocks(
    reference: torch.Tensor, noisy: torch.Tensor
) -> Iterator[tuple[differences.Place, torch.Tensor, torch.Tensor]]:
    """Yield reference and estimated error of each element, block by block; both 0 if one is not finite."""
    for place, (wide, other) in differences.blocks(reference, noisy):
        ignored = ~(wide.isfinite() & other.isfinite())
        error = (other - wide).abs_().div_(_AMPLITUDE)
        yield place, wide.masked_fill(ignored, 0.0), error.masked_fill_(ignored, 0.0)


class _WithNoise(InOneDtype):
    """Runs a graph with noise on every rounded value.

    A number that several operators read gets one noise, so x - x stays 0. Weights get theirs when they are
    read, so that only the weights of one operator are held twice.

    The noise has the size of rounding in the dtypes that the graph was captured with, whatever dtype it runs
    in; a sign of -1 gives the opposite noise.
    """

    def __init__(
        self, graph: fx.GraphModule, dtype: torch.dtype, seed: int, sign: int, may_underflow: bool
    ) -> None:
        super().__init__(graph, dtype)
        self._seed, self._sign, self._may_underflow = seed, sign, may_underflow
        self._numbers = {node: at for at, node in enumerate(graph.graph.nodes)}
        self._exact: set[fx.Node] = set()
        """Nodes whose values are still inputs or weights, without noise."""

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and add noise to what it computes; operators that only move elements add none."""
        value = super().run_node(n)
        if n.op in ("placeholder", "get_attr") or (
            n.target in MOVES and self._exact.issuperset(n.all_input_nodes)
        ):
            self._exact.add(n)
            return value
        return value if n.op != "call_function" or n.target in MOVES else self._noised(value, n)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a node, with noise on inputs and weights that arithmetic reads."""
        if n.op != "call_function" or n.target in MOVES:
            args, kwargs = super().fetch_args_kwargs_from_env(n)
            return tuple(args), kwargs
        return fx.node.map_arg(
            (n.args, n.kwargs),
            lambda a: self._noised(self.env[a], a) if a in self._exact else self.env[a],
        )

    def _noised(self, value: Any, node: fx.Node) -> Any:
        leaves, spec = tree_flatten(value)
        types = _leaves(node)
        if len(types) != len(leaves):
            types = leaves
        noised = [
            self._with_noise(leaf, kind, 1000 * self._numbers[node] + at)
            for at, (leaf, kind) in enumerate(zip(leaves, types, strict=True))
        ]
        return tree_unflatten(noised, spec)

    def _with_noise(self, leaf: Any, kind: Any, number: int) -> Any:
        eps = _eps_of(kind)
        if eps is None or not isinstance(leaf, torch.Tensor) or _eps_of(leaf) is None or leaf.numel() == 0:
            return leaf
        wide = self.cast(leaf)
        generator = torch.Generator(wide.device).manual_seed(self._seed * 1_000_003 + number)
        real = torch.empty_like(wide, dtype=wide.dtype.to_real()) if wide.is_complex() else wide
        noise = torch.rand(real.shape, generator=generator, dtype=real.dtype, device=real.device)
        size = self._sign * _AMPLITUDE * eps / 2  # rounding errs by at most half a unit
        finite = wide.masked_fill(~wide.isfinite(), 0.0)  # the -inf of a mask stays: inf - inf would be NaN
        if self._may_underflow and kind.dtype in TOLERANCES:
            smallest = (noise - 0.5) * (2 * _AMPLITUDE * self._sign * TOLERANCES[kind.dtype].smallest)
            wide = wide + smallest.to(wide.dtype)
        return torch.addcmul(wide, finite, noise.mul_(2 * size).sub_(size).to(wide.dtype))


_WIDE = torch.finfo(torch.float64).eps


def _leaves(node: fx.Node) -> list[Any]:
    return tree_leaves(node.meta.get("val"))


def _eps_of(value: Any) -> float | None:
    """The unit in the last place of a tensor's dtype; None for values that are not rounded."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    return torch.finfo(value.dtype).eps
