"""A graph of a file, as a callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchrlopt.artefact.calls import Calls, Json, damaged, fields
from torchrlopt.errors import LoweringError, ModelFormatError
from torchrlopt.executors.eager.guard import are_finite

ReadTensor = Callable[[Any], torch.Tensor]
"""Returns a tensor of the file by its number; raises ModelFormatError if there is none."""


class StoredGraph:
    """Runs a graph.

    Args:
        content: what `lowered.packed` made; untrusted.
        num_given: how many tensors each call passes.
        tensor: reads the weights.

    Attributes:
        num_outputs: how many values it returns.

    Raises:
        ModelFormatError: the content is malformed.
        LoweringError: this processor lacks a kernel.
    """

    def __init__(self, content: Json, num_given: int, tensor: ReadTensor) -> None:
        run, apart, self._watched = fields(content, run=dict, apart=list, watched=list)
        if len(apart) > 1 or not all(type(at) is int and 0 <= at < num_given for at in self._watched):
            raise damaged("what must be finite is no input", self._watched)
        self._run = _Values(run, num_given, tensor)
        self._apart = _Values(apart[0], num_given, tensor) if apart else self._run
        self.num_outputs = self._run.num_outputs
        if self._apart.num_outputs != self.num_outputs:
            raise damaged("two forms of a graph have other numbers of outputs")

    def __call__(self, given: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Run on the tensors of a call.

        If one is not finite and a kernel needs it to be, other kernels run.
        """
        if self._watched and not are_finite([given[at] for at in self._watched]):
            return self._apart(given)
        return self._run(given)


class _Values:
    """A list of calls with the values that it reads: tensors of the call, weights, packed weights."""

    def __init__(self, content: Json, num_given: int, tensor: ReadTensor) -> None:
        values, calls, outputs = fields(content, values=list, calls=list, outputs=list)
        self._numbers: list[int] = []
        made = [self._value(each, num_given, tensor) for each in values]
        self._calls = Calls({"calls": calls, "outputs": outputs}, made)
        self.num_outputs = len(outputs)

    def _value(self, content: Json, num_given: int, tensor: ReadTensor) -> Any:
        if type(content) is not dict or len(content) != 1:
            raise damaged("a value is of no known kind", content)
        ((kind, inner),) = content.items()
        if kind == "given" and type(inner) is int and 0 <= inner < num_given:
            self._numbers.append(inner)
            return None
        if kind == "tensor":
            return tensor(inner)
        if kind == "packed" and num_given:  # one level: what is packed is a weight
            try:
                (packed,) = _Values(inner, 0, tensor)(())
            except (ModelFormatError, LoweringError):
                raise
            except Exception as error:  # of any operator, on what the file chose
                raise damaged("a weight cannot be packed", error) from error
            return packed
        raise damaged("a value is of no known kind", content)

    def __call__(self, given: Sequence[torch.Tensor]) -> Sequence[Any]:
        return self._calls([given[at] for at in self._numbers])
