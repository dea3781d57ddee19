"""Reads TASO's file of substitutions, `graph_subst.pb` of its repository: facts only, no code of TASO.

The file is one message of Protocol Buffers: rules, each with operators before and after and a map of outputs.
An operator has a type, parameters by number, and inputs: (operator, output) of the same side, or a variable,
which is a negative number. What is not of this form is refused, since anybody may have made the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchrlopt.errors import SubstitutionError

#: Types of operators and parameters by the numbers that the file uses.
OPS = {3: "conv", 8: "relu", 12: "concat", 13: "split", 16: "add", 17: "mul", 18: "matmul"}
PARAMETERS = {
    1: "num_inputs", 2: "num_outputs", 4: "kernel_h", 5: "kernel_w", 6: "stride_h", 7: "stride_w",
    8: "padding", 9: "activation", 10: "rank", 11: "axis",
}  # fmt: skip
_MAX_BYTES = 10_000_000
_NUM_INPUTS = {"conv": 2, "relu": 1, "concat": 2, "split": 1, "add": 2, "mul": 2, "matmul": 2}

Source = tuple[int, int]
"""(operator, output); of a variable (its negative number, 0)."""


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator of a side.

    Attributes:
        op: a value of `OPS`.
        inputs: what it reads.
        parameters: by the names of `PARAMETERS`.
    """

    op: str
    inputs: tuple[Source, ...]
    parameters: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class TasoRule:
    """One substitution.

    Attributes:
        number: in the file, from 0.
        before: operators of the pattern, in order.
        after: of the replacement.
        outputs: pairs of a value of the pattern and one of the replacement that takes its place.
    """

    number: int
    before: tuple[Operator, ...]
    after: tuple[Operator, ...]
    outputs: tuple[tuple[Source, Source], ...]


def read_rules(path: Path) -> list[TasoRule]:
    """All rules of a file.

    Raises:
        SubstitutionError: the file is not of this form.
        OSError: it cannot be read.
    """
    data = path.read_bytes()[: _MAX_BYTES + 1]
    if len(data) > _MAX_BYTES:
        raise SubstitutionError(f"the file has more than {_MAX_BYTES} bytes", file=path.name)
    try:
        return [_rule(number, _bytes(value)) for number, (_, value) in enumerate(_fields(data))]
    except (IndexError, KeyError, ValueError) as error:
        raise SubstitutionError(f"not a file of TASO's substitutions: {error!r}", file=path.name) from error


def _rule(number: int, data: bytes) -> TasoRule:
    sides: dict[int, list[Operator]] = {1: [], 2: []}
    outputs = []
    for field, value in _fields(data):
        if field == 3:
            numbers = dict(_fields(_bytes(value)))
            before, after = ((_number(numbers[op]), _number(numbers[out])) for op, out in ((1, 3), (2, 4)))
            outputs.append((before, after))
        else:
            sides[field].append(_operator(_bytes(value)))
    for side in sides.values():
        for place, operator in enumerate(side):
            if any(not (op < 0 or op < place) for op, _ in operator.inputs):
                raise ValueError(f"rule {number}: an operator reads one that comes after it")
    return TasoRule(number, tuple(sides[1]), tuple(sides[2]), tuple(outputs))


def _operator(data: bytes) -> Operator:
    op, inputs, parameters = "", [], {}
    for field, value in _fields(data):
        if field == 1:
            op = OPS[_number(value)]
        else:
            first, second = (_number(each) for _, each in sorted(_fields(_bytes(value))))
            if field == 2:
                inputs.append((first, second))
            else:
                parameters[PARAMETERS[first]] = second
    if len(inputs) != _NUM_INPUTS[op]:
        raise ValueError(f"{op} with {len(inputs)} inputs")
    return Operator(op, tuple(inputs), parameters)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and contents of the fields of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            size, at = _varint(data, at)
            if not 0 <= size <= len(data) - at:
                raise ValueError("a field is longer than its message")
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"field of type {key & 7}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        value |= (data[at + place] & 127) << (7 * place)
        if data[at + place] < 128:
            return (value - (1 << 64) if value >= 1 << 63 else value), at + place + 1
    raise ValueError("a number of more than 10 bytes")


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a message in the place of a number")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in the place of a message")
    return value
