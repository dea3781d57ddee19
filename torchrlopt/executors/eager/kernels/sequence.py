"""Calls of our kernels that follow on each other, as one operator: `torchrlopt::sequence`.

The operator takes the program as a text, so that it can be traced, exported and kept in a file as any other
argument is. `_C.KernelSequence` runs it in one parallel region; what does not lie as the kernels read it is
run one by one by `interpret`, which also says what a sequence gives for fake tensors.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from torchrlopt import _C
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.library import DirectForm, define, recorded
from torchrlopt.executors.eager.kernels.operators import (
    CONV,
    CONV_INTO,
    COPY_INTO,
    LINEAR,
    POOL,
    POOL_INTO,
    ROOM,
    SHUFFLE,
    convolution_arguments,
    linear_arguments,
    pool_arguments,
)

_MOST_KEPT = 256
"""Programs that were called through the dispatcher last; the eager executor has each in its graph."""


class Instruction(NamedTuple):
    """What `_C.KernelSequence` reads of one call. Values are numbered, inputs first; -1 stands for none.

    Attributes:
        operation: at which place of `_C.KERNEL_OPERATIONS`.
        x: what is read.
        packed: the weight of a convolution or a product.
        other: what is added to a convolution, or the second operand of what is pointwise.
        room: the image into which the result is written.
        first_channel: of the room, or of a slice.
        numbers: as the call takes them; of what is pointwise its place in `_C.POINTWISE_OPERATIONS` and the
            activation; of a room or a view the sizes, of a slice how many channels, of a shuffle the groups.
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
        dtype: name of the images' type.
        num_inputs: operands, and behind them the rooms that are given.
        instructions: in order; each makes a value.
        outputs: numbers of the values that are results.
    """

    dtype: str
    num_inputs: int
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    def text(self) -> str:
        """As the operator takes it."""
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Program:
        """The program of a text."""
        dtype, num_inputs, instructions, outputs = json.loads(text)
        read = (Instruction(*each[:-1], numbers=tuple(each[-1])) for each in instructions)
        return cls(dtype, num_inputs, tuple(read), tuple(outputs))


class RunSequence:
    """The direct form of the operator: a function of operands and rooms.

    Args:
        program: what it runs.

    Attributes:
        sequence: with a schedule for the sizes that were there last.
    """

    __module__ = __name__
    __name__ = "sequence"

    def __init__(self, program: Program) -> None:
        ours = indirect.present(getattr(torch, program.dtype))
        inputs, instructions = program.num_inputs, list(program.instructions)
        self.sequence = _C.KernelSequence(ours, inputs, instructions, list(program.outputs))
        self._program = program
        self._has_one = len(program.outputs) == 1
        # What comes from elsewhere may be a view that negates. Packed weights and rooms are not.
        made = {number for each in program.instructions for number in (each.packed, each.room)}
        self._foreign = [at for at in range(inputs) if at not in made]

    def __call__(self, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
        """The results."""
        return recorded("sequence", self._run, *operands)  # type: ignore[no-any-return]

    def _run(self, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
        if not any(operands[at].is_neg() for at in self._foreign):
            result = self.sequence(*operands)
            if result is not None:
                return (result,) if self._has_one else result
        return interpret(self._program, operands)  # what does not lie as the kernels read it is copied there


def interpret(program: Program, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a sequence, whose kernels are called one by one.

    Args:
        program: what is run.
        operands: inputs and rooms; real or fake tensors.
    """
    values: list[Any] = list(operands)
    for each in program.instructions:
        call = _CALLS[_C.KERNEL_OPERATIONS[each.operation]]
        values.append(call(each, values, getattr(torch, program.dtype)))
    return [values[at] for at in program.outputs]


def _convolve(each: Instruction, values: list[Any], _: torch.dtype) -> Any:
    tensors = (values[each.x], values[each.packed], None if each.other < 0 else values[each.other])
    arguments = convolution_arguments(each.numbers)
    if each.room < 0:
        return CONV(*tensors, *arguments)
    return CONV_INTO(*tensors, values[each.room], each.first_channel, *arguments)


def _pool(each: Instruction, values: list[Any], _: torch.dtype) -> Any:
    x, arguments = values[each.x], pool_arguments(each.numbers)
    if each.room < 0:
        return POOL(x, *arguments)
    return POOL_INTO(x, values[each.room], each.first_channel, *arguments)


def _slice(each: Instruction, values: list[Any], _: torch.dtype) -> torch.Tensor:
    x: torch.Tensor = values[each.x]
    (width,) = each.numbers
    return x.narrow(1 if x.dim() == 4 else -1, each.first_channel, int(width))


def _pointwise(each: Instruction, values: list[Any], _: torch.dtype) -> Any:
    kind, activation, low, high = each.numbers
    x = values[each.x]
    if each.other >= 0:
        is_sum = _C.POINTWISE_OPERATIONS[int(kind)] == "add"
        x = x + values[each.other] if is_sum else x * values[each.other]
    x = _ACTIVATIONS[indirect.EPILOGUES[int(activation)]](x, low, high)
    return x if each.room < 0 else COPY_INTO(x, values[each.room], each.first_channel)


_CALLS: dict[str, Callable[[Instruction, list[Any], torch.dtype], Any]] = {
    "convolve": _convolve,
    "pool": _pool,
    "linear": lambda each, values, _: LINEAR(
        values[each.x], values[each.packed], *linear_arguments(each.numbers)
    ),
    "pointwise": _pointwise,
    "room": lambda each, values, dtype: ROOM(each.numbers, dtype),
    "same": lambda each, values, _: values[each.x],
    "view": lambda each, values, _: values[each.x].reshape(each.numbers),
    "slice": _slice,
    "shuffle": lambda each, values, _: SHUFFLE(values[each.x], each.numbers[0]),
}

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


def _direct(operands: Sequence[Any], text: str) -> DirectForm:
    return RunSequence(Program.of(text)), tuple(operands)


def _direct_into(operands: Sequence[Any], rooms: Sequence[Any], text: str) -> DirectForm:
    return RunSequence(Program.of(text)), (*operands, *rooms)


SEQUENCE = define(
    "sequence(Tensor[] operands, str program) -> Tensor[]",
    _direct,
    lambda operands, text: interpret(Program.of(text), operands),
    run=lambda operands, text: list(_prepared(text)(*operands)),
)
SEQUENCE_INTO = define(
    "sequence_into(Tensor[] operands, Tensor(a!)[] rooms, str program) -> Tensor[]",
    _direct_into,
    lambda operands, rooms, text: interpret(Program.of(text), [*operands, *rooms]),
    run=lambda operands, rooms, text: list(_prepared(text)(*operands, *rooms)),
)
"""Also writes into rooms that are made outside. PyTorch cannot functionalise it, as results are a list."""
