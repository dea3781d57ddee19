"""Consecutive calls of our kernels as one operator: `torchrlopt::sequence`.

The operator takes the program as a string, so that it can be traced, exported and saved like any other
argument. `_C.KernelSequence` runs it in one parallel region. If the operands' strides are not supported,
`interpret` runs the calls one by one; it also computes the results for fake tensors.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.nn import functional

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.library import DirectForm, define, direct_form, recorded
from torchrlopt.executors.eager.kernels.operators import FAKES

_MOST_KEPT = 256
"""Number of programs cached for dispatcher calls; the eager executor keeps its own in the graph."""


class Instruction(NamedTuple):
    """One call, as `_C.KernelSequence` reads it. Values are numbered, inputs first; -1 means none.

    Attributes:
        operation: index in `_C.KERNEL_OPERATIONS`.
        x: the value that is read.
        packed: the weight of a convolution or a product.
        other: the summand of a convolution, or the second operand of a pointwise operation.
        room: the concat buffer that the result is written into.
        first_channel: of the concat buffer, or of a slice.
        numbers: as the call takes them. For a pointwise operation: its index in `_C.POINTWISE_OPERATIONS`,
            the activation and the dtype of the result (-1: the operand's), by `indirect.element_of`; for a
            concat buffer: its dtype and its sizes; for a view: the sizes; for a slice: the number of
            channels; for a shuffle: the number of groups.
    """

    operation: int
    x: int = -1
    packed: int = -1
    other: int = -1
    room: int = -1
    first_channel: int = 0
    numbers: tuple[float, ...] = ()


class Program(NamedTuple):
    """A sequence.

    Attributes:
        num_inputs: number of operands, including the concat buffers passed in, which come last.
        instructions: in order; each computes one value.
        outputs: numbers of the values that are results.
    """

    num_inputs: int
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    def text(self) -> str:
        """The program as the string that the operator takes."""
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Program:
        """Parse a program."""
        num_inputs, instructions, outputs = json.loads(text)
        read = (Instruction._make((*each[:-1], tuple(each[-1]))) for each in instructions)
        return cls(num_inputs, tuple(read), tuple(outputs))


class RunSequence:
    """The direct form of the operator: a function of operands and concat buffers.

    Args:
        program: what it runs.

    Attributes:
        sequence: the compiled sequence, with a schedule for the most recent sizes.
        program: what it runs.
    """

    __module__ = __name__
    __name__ = "sequence"

    def __init__(self, program: Program) -> None:
        ours = indirect.present(torch.float32)
        inputs, instructions = program.num_inputs, list(program.instructions)
        self.sequence = _C.KernelSequence(ours, inputs, instructions, list(program.outputs))
        self.program = program
        self._has_one = len(program.outputs) == 1
        # Operands from elsewhere may be negated views; packed weights and concat buffers never are.
        made = {number for each in program.instructions for number in (each.packed, each.room)}
        self._foreign = [at for at in range(inputs) if at not in made]

    def __call__(self, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
        """Run the sequence and return its results."""
        results: Sequence[torch.Tensor] = recorded("sequence", self._run, *operands)
        return results

    def _run(self, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
        if not any(operands[at].is_neg() for at in self._foreign):
            result: Any = self.sequence(*operands)
            if result is not None:
                results: tuple[torch.Tensor, ...] = (result,) if self._has_one else result
                return results
        return interpret(self.program, operands, {})  # unsupported strides are copied there


def interpret(
    program: Program, operands: Sequence[torch.Tensor], functions: Mapping[Any, Callable[..., Any]]
) -> list[torch.Tensor]:
    """Run a sequence by calling its kernels one by one.

    Args:
        program: the sequence.
        operands: inputs and concat buffers.
        functions: replacements for the functions of direct forms; `FAKES` for fake tensors.
    """
    values: list[Any] = list(operands)

    def call(function: Callable[..., Any], *args: Any) -> Any:
        return functions.get(function, function)(*args)

    for each in program.instructions:
        name, numbers = _C.KERNEL_OPERATIONS[each.operation], each.numbers
        x: Any = None if each.x < 0 else values[each.x]
        other = None if each.other < 0 else values[each.other]
        place = () if each.room < 0 else (values[each.room], each.first_channel)
        if name == "convolve":
            made = call(indirect.convolve, x, values[each.packed], other, numbers, *place)
        elif name == "pool":
            made = call(indirect.pool, x, numbers, *place)
        elif name == "linear":
            made = call(indirect.linear, x, values[each.packed], numbers)
        elif name == "shuffle":
            made = call(indirect.shuffle, x, *numbers)
        elif name == "room":
            dtype = indirect.dtype_of(numbers[0]) or torch.float32
            made = indirect.room_for(list(map(int, numbers[1:])), dtype)
        elif name == "pointwise":
            made = _pointwise(x, other, *numbers)
            made = call(indirect.fill, made, *place) if place else made
        elif name == "slice":
            made = x.narrow(1 if x.dim() == 4 else -1, each.first_channel, int(numbers[0]))
        else:
            made = x.reshape(numbers) if name == "view" else x
        values.append(made)
    return [values[at] for at in program.outputs]


def _pointwise(
    x: torch.Tensor,
    other: torch.Tensor | None,
    kind: float,
    activation: float,
    low: float,
    high: float,
    element: float,
) -> torch.Tensor:
    if other is not None:
        x = x + other if _C.POINTWISE_OPERATIONS[int(kind)] == "add" else x * other
    result = _ACTIVATIONS[indirect.EPILOGUES[int(activation)]](x, low, high)
    return result.to(indirect.dtype_of(element) or x.dtype)


_ACTIVATIONS: dict[str, Callable[[torch.Tensor, float, float], torch.Tensor]] = {
    "none": lambda x, low, high: x,
    "relu": lambda x, low, high: torch.relu(x),
    "hardtanh": torch.clamp,
    "leaky_relu": lambda x, slope, _: functional.leaky_relu(x, slope),
    "hardswish": lambda x, low, high: functional.hardswish(x),
    "hardsigmoid": lambda x, low, high: functional.hardsigmoid(x),
    "sigmoid": lambda x, low, high: torch.sigmoid(x),
    "swish": lambda x, low, high: functional.silu(x),
    "tanh": lambda x, low, high: torch.tanh(x),
    "gelu": lambda x, low, high: functional.gelu(x),
    "gelu tanh": lambda x, low, high: functional.gelu(x, approximate="tanh"),
}

_prepared = functools.lru_cache(_MOST_KEPT)(lambda text: RunSequence(Program.of(text)))


def _run(operands: Sequence[torch.Tensor], text: str) -> list[torch.Tensor]:
    return list(_prepared(text)(*operands))


def _fake(operands: Sequence[torch.Tensor], text: str) -> list[torch.Tensor]:
    return interpret(Program.of(text), operands, FAKES)


SEQUENCE = define(
    "sequence(Tensor[] operands, str program) -> Tensor[]",
    lambda operands, text: (_run, (operands, text)),
    {_run: _fake},
)
SEQUENCE_INTO = define(
    "sequence_into(Tensor[] operands, Tensor(a!)[] rooms, str program) -> Tensor[]",
    lambda operands, rooms, text: (_run, ([*operands, *rooms], text)),
    {_run: _fake},
)
"""Also writes into concat buffers made outside. It returns a list, so PyTorch cannot functionalise it."""


def direct_sequence(call: fx.Node) -> DirectForm:
    """The direct form of a call in a graph; it has its own schedule."""
    _, (operands, text) = direct_form(call)
    return RunSequence(Program.of(text)), tuple(operands)
