"""Checks one graph against its possible replacements: which inputs are used, in which order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torchrlopt.capture.sampling import extreme_inputs, random_inputs, reduced_inputs
from torchrlopt.errors import UnsupportedError
from torchrlopt.judge import right
from torchrlopt.judge.floats import Own
from torchrlopt.torch_private.operators import OpOverload
from torchrlopt.torch_private.tensors import version_of

logger = logging.getLogger("torchrlopt")


class Verified(NamedTuple):
    """A check that was passed.

    Attributes:
        error: of the rewritten graph, see `Report.numerical_error`.
        own: for each output the original's own error, root mean square and maximum, as fractions of max|y|.
        holds_for_all_weights: whether it was passed with random weights, so that it holds for other weights
            too.
    """

    error: float
    own: tuple[Own, ...] = ()
    holds_for_all_weights: bool = False


class GraphCheck:
    """Checks candidates for one graph. Caches the original's outputs for the next candidate."""

    def __init__(
        self,
        aten: torch.fx.GraphModule,
        inputs: Callable[[], Sequence[Any]],
        static: Collection[int],
        device_type: str,
        seed: int,
    ) -> None:
        self._aten, self._inputs, self._static = aten, inputs, static
        self._is_on_cpu, self._seed = device_type == "cpu", seed
        self._standards: dict[tuple[bool, bool, bool], right.Standard] = {}
        self._versions: list[int] = []  # of the weights that these were computed with

    def verify(
        self, candidate: right.Callee, holds_for_all_weights: bool, known: Verified | None
    ) -> Verified:
        """Check on random inputs, and on the user's weights and inputs.

        Args:
            candidate: the rewritten graph.
            holds_for_all_weights: whether a check with random weights also holds for the user's: not for
                runtimes that fold weights, which would pack every set of them.
            known: the check with random weights, if it was passed before.

        Raises:
            VerificationError: the rewritten graph is wrong.
        """
        inputs = self._inputs()
        weights = [inputs[at] for at in sorted(self._static)]
        versions = [version_of(w) for w in weights if isinstance(w, torch.Tensor) and not w.is_inference()]
        if versions != self._versions:
            self._standards, self._versions = {}, versions
        if known is None:
            found = self._verify_random(candidate, inputs, holds_for_all_weights)
            if found is None:  # the model rejects random inputs: use the user's own
                return Verified(right.verify(self._aten, self._aten.forward, candidate, inputs).worst)
            if not holds_for_all_weights:
                return Verified(found.worst)
            known = Verified(found.worst, found.own, holds_for_all_weights=True)
        new, where = right.run(candidate, inputs), "the user's weights and inputs"
        right.confirm(self._aten, self._aten.forward, new, inputs, where, known.own)
        return known

    def _verify_random(
        self, candidate: right.Callee, inputs: Sequence[Any], holds_for_all_weights: bool
    ) -> right.Errors | None:
        """Check on random inputs, with few rows if possible; return None if the model rejects all of them."""
        for is_reduced in (True, False):  # the user's own sizes are checked afterwards
            given = self._reduced(inputs) if is_reduced else inputs
            if given is None:
                continue
            fresh = random_inputs(given, self._static, self._seed)
            if not holds_for_all_weights:
                fresh = [inputs[i] if i in self._static else x for i, x in enumerate(fresh)]
            lent = _with_lent(candidate, {i: fresh[i] for i in self._static if fresh[i] is not given[i]})
            try:
                known = self._standard(fresh, (holds_for_all_weights, is_reduced, False))
                found = right.verify_against(known, lent, fresh)
            except UnsupportedError as error:  # such as rows that are indexed by another input's numbers
                logger.debug("the check goes on with other inputs: %s", error)
                continue
            extreme = extreme_inputs(given, fresh, self._static)
            # On a GPU an out-of-range index, which may be computed from them, would end the program. A
            # foreign operator may take time or memory in proportion to their values.
            if extreme is not None and self._is_on_cpu and not _has_foreign_operators(self._aten):
                self._verify_extreme(lent, extreme, (holds_for_all_weights, is_reduced, True))
            return found
        return None

    def _verify_extreme(
        self, candidate: right.Callee, inputs: Sequence[Any], key: tuple[bool, bool, bool]
    ) -> None:
        """Check on extreme inputs, if the model accepts them and its outputs stay finite."""
        try:
            known = self._standard(inputs, key)
            if right.outputs_are_finite(known):
                right.verify_extreme(known, candidate)
        except UnsupportedError as error:
            logger.debug("nothing is known for extreme inputs: %s", error)

    def _standard(self, inputs: Sequence[Any], key: tuple[bool, bool, bool]) -> right.Standard:
        """Return the original's outputs for inputs identified by (random weights, few rows, extreme)."""
        if key not in self._standards:
            self._standards[key] = right.standard(self._aten, self._aten.forward, inputs, is_extreme=key[2])
        return self._standards[key]

    def _reduced(self, inputs: Sequence[Any]) -> list[Any] | None:
        """See `reduced_inputs`. On a GPU an index beyond the remaining rows would end the program."""
        varying = (each for at, each in enumerate(inputs) if at not in self._static)
        has_numbers = any(isinstance(x, torch.Tensor) and not x.is_floating_point() for x in varying)
        if has_numbers and not self._is_on_cpu:
            return None
        return reduced_inputs(self._aten, inputs, self._static)


def _with_lent(candidate: right.Callee, weights: Mapping[int, torch.Tensor]) -> right.Callee:
    """Let a candidate see other objects over the memory of some weights, which live no longer than this.

    Whatever it has packed for them goes with them, before it packs the user's.
    """
    if not weights:
        return candidate
    lent = {at: weight.detach() for at, weight in weights.items()}
    return lambda *args: candidate(*(lent.get(at, each) for at, each in enumerate(args)))


_OWN = ("aten", "prims", "torchrlopt")


def _has_foreign_operators(aten: torch.fx.GraphModule) -> bool:
    operators = (node.target for node in aten.graph.nodes if node.op == "call_function")
    return any(isinstance(each, OpOverload) and each.namespace not in _OWN for each in operators)
