"""How far does a graph carry rounding errors? Runs with noise tell.

Every number that arithmetic reads or makes is changed by as much as rounding may change it, at random (Monte
Carlo arithmetic, Parker 1997). What comes out changes by as much as two right ways to compute may differ:
hardly where the graph is harmless, by all its digits where sums cancel.
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
"""Noise in units of the largest rounding error; what it does is divided by as much again.

Where errors have an edge, such as a relu's, single units often leave everything on one side of it.
"""

MOST_PAIRS = 3
"""Pairs of runs, of opposite noise: an error that only shows on one side of an edge is in one of the two."""


class Carried(NamedTuple):
    """An estimate of the rounding errors in one output; none where the graph does not run, to be strict.

    Attributes:
        rmse: root mean square error.
        largest: maximum error.
    """

    rmse: float = 0.0
    largest: float = 0.0


class Conditioning:
    """The rounding errors that one graph carries for one set of inputs; runs when first asked.

    Args:
        aten: the graph.
        inputs: of the graph.
        may_underflow: whether 0 stands for numbers below the smallest normal one as well, as in many kernels:
            what a softmax leaves far from its largest number has no order then.
    """

    def __init__(self, aten: fx.GraphModule, inputs: Sequence[Any], may_underflow: bool = False) -> None:
        self._aten, self._inputs = aten, inputs
        self._may_underflow = may_underflow
        self._pairs: list[Sequence[Any]] = []

    def pairs(self, index: int) -> Iterator[Sequence[Any]]:
        """For an output what runs of opposite noise give for it, pair after pair; none where they fail."""
        for number in range(MOST_PAIRS):
            if number == len(self._pairs):
                self._pairs.append(self._run(number))
            if not self._pairs[number]:
                return
            yield [outputs[index] for outputs in self._pairs[number]]

    def carried(self, index: int, reference: torch.Tensor, num_pairs: int = 1) -> Carried:
        """The estimate for a whole output.

        Args:
            index: of the output.
            reference: the output in float64.
            num_pairs: pairs of runs that count: the noise on one number may be small in the first one.
        """
        found = differences.Errors()
        for noisy in itertools.chain.from_iterable(itertools.islice(self.pairs(index), num_pairs)):
            for _, _, error in carried_blocks(reference, noisy):
                found.add(error)
        return Carried(found.rmse, found.largest) if math.isfinite(found.rmse) else Carried()

    def flipped_by_noise(self, index: int, integers: torch.Tensor) -> torch.Tensor:
        """Where an output of integers or flags is another one with noise."""
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
    """Block by block the reference and the estimate for each element; both 0 where one is not finite."""
    for place, (wide, other) in differences.blocks(reference, noisy):
        ignored = ~(wide.isfinite() & other.isfinite())
        error = (other - wide).abs_().div_(_AMPLITUDE)
        yield place, wide.masked_fill(ignored, 0.0), error.masked_fill_(ignored, 0.0)


class _WithNoise(InOneDtype):
    """Runs a graph with noise on all that is rounded.

    A number that several operators read has one noise: x - x stays 0. Weights get theirs where they are read,
    so that no more of them is held twice than one operator reads.

    Args:
        graph: the graph.
        dtype: in which it runs; noise has the size of the roundings that the graph was captured with.
        seed: of the noise.
        sign: 1 or -1, for the opposite noise.
        may_underflow: see `Conditioning`.
    """

    def __init__(
        self, graph: fx.GraphModule, dtype: torch.dtype, seed: int, sign: int, may_underflow: bool
    ) -> None:
        super().__init__(graph, dtype)
        self._seed, self._sign, self._may_underflow = seed, sign, may_underflow
        self._numbers = {node: at for at, node in enumerate(graph.graph.nodes)}
        self._exact: set[fx.Node] = set()
        """Nodes whose values are those of inputs and weights, without noise."""

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and add noise to what it computes; what only moves is as it was."""
        value = super().run_node(n)
        if n.op in ("placeholder", "get_attr") or (
            n.target in MOVES and self._exact.issuperset(n.all_input_nodes)
        ):
            self._exact.add(n)
            return value
        return value if n.op != "call_function" or n.target in MOVES else self._noised(value, n)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a node, with noise on inputs and weights that arithmetic reads."""
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
        size = self._sign * _AMPLITUDE * eps / 2  # rounding errs by half a unit at most
        finite = wide.masked_fill(~wide.isfinite(), 0.0)  # inf - inf would be NaN, of all that a mask meets
        if self._may_underflow and kind.dtype in TOLERANCES:
            smallest = (noise - 0.5) * (2 * _AMPLITUDE * self._sign * TOLERANCES[kind.dtype].smallest)
            wide = wide + smallest.to(wide.dtype)
        return torch.addcmul(wide, finite, noise.mul_(2 * size).sub_(size).to(wide.dtype))


_WIDE = torch.finfo(torch.float64).eps


def _leaves(node: fx.Node) -> list[Any]:
    return tree_leaves(node.meta.get("val"))


def _eps_of(value: Any) -> float | None:
    """The unit in the last place of a tensor's dtype; None for what is not rounded."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    return torch.finfo(value.dtype).eps
