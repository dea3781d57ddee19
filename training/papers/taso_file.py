"""Parses TASO's file of substitutions, `graph_subst.pb` of its repository, a Protocol Buffers message.

An operator has a type, numbered parameters, and inputs: (operator, output) of the same side, or a variable,
which is a negative number.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from torchrlopt.errors import SubstitutionError

#: Operator types and parameters by their numbers in the file.
OPS = {3: "conv", 8: "relu", 12: "concat", 13: "split", 16: "add", 17: "mul", 18: "matmul"}
PARAMETERS = {
    1: "num_inputs", 2: "num_outputs", 4: "kernel_h", 5: "kernel_w", 6: "stride_h", 7: "stride_w",
    8: "padding", 9: "activation", 10: "rank", 11: "axis",
}  # fmt: skip
_NUM_INPUTS = {"conv": 2, "relu": 1, "concat": 2, "split": 1, "add": 2, "mul": 2, "matmul": 2}
_MAX_BYTES = 10_000_000
#: The message types of the file: fields by number, each with its message type, or "" for a number.
_MESSAGES: Mapping[str, Sequence[tuple[str, str]]] = {
    "Value": (("op", ""), ("out", "")),
    "Parameter": (("key", ""), ("value", "")),
    "Output": (("before_op", ""), ("after_op", ""), ("before_out", ""), ("after_out", "")),
    "Op": (("type", ""), ("input", "Value"), ("parameter", "Parameter")),
    "Rule": (("before", "Op"), ("after", "Op"), ("output", "Output")),
    "File": (("rule", "Rule"),),
}

Source = tuple[int, int]
"""(operator, output) of the same side; (its negative number, 0) for a variable."""


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator of a side.

    Attributes:
        op: a value of `OPS`.
        inputs: its input values.
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
        outputs: pairs of a pattern value and the replacement value that takes its place.
    """

    number: int
    before: tuple[Operator, ...]
    after: tuple[Operator, ...]
    outputs: tuple[tuple[Source, Source], ...]


@functools.cache
def _file_message() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="taso_rules.proto", package="taso")
    for name, fields in _MESSAGES.items():
        made = file.message_type.add(name=name)
        for place, (field, of) in enumerate(fields, 1):
            kind = made.field.add(name=field, number=place, label=3 if of else 1, type=11 if of else 5)
            if of:  # repeated messages; the rest are optional int32
                kind.type_name = f".taso.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("taso.File"))


def read_rules(path: Path) -> list[TasoRule]:
    """Read all rules of a file. The file is untrusted; malformed input is refused.

    Raises:
        SubstitutionError: the file is malformed.
        OSError: it cannot be read.
    """
    data = path.read_bytes()[: _MAX_BYTES + 1]
    if len(data) > _MAX_BYTES:
        raise SubstitutionError(f"the file has more than {_MAX_BYTES} bytes", file=path.name)
    try:
        return [_rule(number, each) for number, each in enumerate(_file_message().FromString(data).rule)]
    except (message.DecodeError, KeyError, ValueError) as error:
        raise SubstitutionError(f"not a file of TASO's substitutions: {error!r}", file=path.name) from error


def _rule(number: int, given: Any) -> TasoRule:
    sides = [tuple(map(_operator, side)) for side in (given.before, given.after)]
    for side in sides:
        for place, operator in enumerate(side):
            if any(op >= place for op, _ in operator.inputs):
                raise ValueError(f"rule {number}: an operator reads one that comes after it")
    outputs = [((out.before_op, out.before_out), (out.after_op, out.after_out)) for out in given.output]
    return TasoRule(number, sides[0], sides[1], tuple(outputs))


def _operator(given: Any) -> Operator:
    op = OPS[given.type]
    if len(given.input) != _NUM_INPUTS[op]:
        raise ValueError(f"{op} with {len(given.input)} inputs")
    parameters = {PARAMETERS[each.key]: each.value for each in given.parameter}
    return Operator(op, tuple((each.op, each.out) for each in given.input), parameters)
