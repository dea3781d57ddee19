"""Writes a rule of TASO in the notation of our library.

TASO's rules say nothing of shapes: a match counts where TASO can make the replacement. Here the shapes that a
rule needs are conditions. There are some ways to write them, from what says least to what says most; which
of them holds is for the verifier to say. What TASO's operators are is kept: a convolution has stride 1 and
the size of its input, an axis of a concatenation stands for one rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from training.taso.rule_file import Operator, Source, TasoRule

_NAMES = "abcefhijkl"  # without those of attributes
_GEOMETRY = "strides=s, pads=p, dilations=d, group="
_RELU = 2  # as an activation
_SAME = 0  # as a padding
_OPS = {"add": "Add", "mul": "Mul", "matmul": "MatMul", "relu": "Relu"}


class UnreadableError(Exception):
    """A rule that our notation has no words for; the message says why."""


@dataclasses.dataclass(frozen=True)
class Way:
    """How the shapes of a rule are written.

    Attributes:
        same_shape: operands of sums and products have one shape.
        all_same: all variables that are no weights have one shape, and so have all weights.
        one_group: convolutions have one group.
        matrices: operands of matrix products are matrices.
        is_linear: right operands of matrix products are weights, so that they are linear layers.
    """

    same_shape: bool = False
    all_same: bool = False
    one_group: bool = False
    matrices: bool = False
    is_linear: bool = False


def _as_groups(rule: TasoRule) -> bool:
    """Whether the replacement has a convolution of two inputs and two kernels side by side, none summed.

    TASO tells the number of groups from the channels of input and kernel: here they are twice as many.
    """

    def axis(source: Source) -> int | None:
        made_by = rule.after[source[0]] if source[0] >= 0 else None
        return made_by.parameters["axis"] if made_by is not None and made_by.op == "concat" else None

    return any(each.op == "conv" and [*map(axis, each.inputs)] == [1, 0] for each in rule.after)


def ways(rule: TasoRule, *, is_linear: bool = False) -> Iterator[Way]:
    """Ways to write a rule, from what says least to what says most."""
    ops = {operator.op for operator in (*rule.before, *rule.after)}
    groups = (False, True) if "conv" in ops else (False,)
    matrices = (False, True) if "matmul" in ops else (False,)
    shapes = [(False, False)]
    if ops & {"add", "mul"}:
        shapes.append((True, False))
    if ops & {"add", "mul", "concat"}:
        shapes.append((True, True))
    for same, all_same in shapes:
        for group in groups:
            for matrix in matrices:
                yield Way(same, all_same, group, matrix, is_linear)


class _Writer:
    """Writes one rule in one way."""

    def __init__(self, rule: TasoRule, way: Way) -> None:
        self.rule, self.way = rule, way
        self.variables: dict[int, str] = {}
        self.weights: set[str] = set()
        self.conditions: dict[str, None] = {}
        self.outputs = {
            before: f"y{place + 1}" if len(rule.outputs) > 1 else "y"
            for place, (before, _) in enumerate(rule.outputs)
        }
        self.outputs_after = {after: self.outputs[before] for before, after in rule.outputs}
        self.of_conv: set[str] = set()

    def name(self, source: Source, is_before: bool) -> str:
        """Of a value of a side."""
        operator, _ = source
        if operator < 0:
            if operator not in self.variables:
                if not is_before:
                    raise UnreadableError("the replacement reads what the pattern has not")
                self.variables[operator] = _NAMES[len(self.variables)]
            return self.variables[operator]
        outputs = self.outputs if is_before else self.outputs_after
        return outputs.get(source, f"{'t' if is_before else 'u'}{operator + 1}")

    def line(self, place: int, operator: Operator, is_before: bool) -> str:
        """One operator."""
        ins = [self.name(source, is_before) for source in operator.inputs]
        out = self.name((place, 0), is_before)
        if operator.op in ("conv", "matmul") and operator.inputs[1][0] < 0:
            self.weights.add(ins[1])
        if operator.op == "split":
            return self._split(place, operator, ins[0])
        if is_before:
            self._conditions_of(operator, ins, out)
        if operator.op == "conv":
            return self._conv(operator, ins, out, is_before)
        if operator.op == "concat":
            axis = f"axis{place + 1}" if is_before else str(operator.parameters["axis"])
            return f"{out} = Concat({', '.join(ins)}; axis={axis})"
        if operator.op == "matmul" and operator.parameters.get("activation", 0):
            raise UnreadableError("a matrix product with an activation")
        op = "FusedMatMul" if operator.op == "matmul" and self.way.is_linear else _OPS[operator.op]
        if operator.op == "matmul" and self.way.is_linear and is_before and operator.inputs[1][0] >= 0:
            raise UnreadableError("a linear layer whose weight is computed by the pattern")
        return f"{out} = {op}({', '.join(ins)})"

    def _conditions_of(self, operator: Operator, ins: list[str], out: str) -> None:
        if operator.op in ("add", "mul") and self.way.same_shape:
            self.conditions[f"same_shape({ins[0]}, {ins[1]})"] = None
        if operator.op == "matmul":
            for each in ins:
                self.conditions[f"rank({each}) {'==' if self.way.matrices else '>='} 2"] = None
        if operator.op == "concat":
            rank, axis = operator.parameters["rank"], operator.parameters["axis"]
            self.conditions[f"rank({out}) == {rank}"] = None
            place = int(out[1:]) if out[0] == "t" else len(self.rule.before)
            self.conditions[f"norm_axis(axis{place}, rank({out})) == {axis}"] = None

    def _conv(self, operator: Operator, ins: list[str], out: str, is_before: bool) -> str:
        given = operator.parameters
        if (given["stride_h"], given["stride_w"], given["padding"]) != (1, 1, _SAME):
            raise UnreadableError("a convolution with a stride, or without padding")
        if not self.of_conv:
            self.conditions["all_equal(s, 1)"] = None
            self.conditions[f"slice(shape({out}), 2, 4) == slice(shape({ins[0]}), 2, 4)"] = None
            self.conditions[f"rank({ins[0]}) == 4"] = None
        self.of_conv.add(out)
        groups = "1" if self.way.one_group else "g"
        geometry = _GEOMETRY + (f"{groups} * 2" if not is_before and _as_groups(self.rule) else groups)
        if given["activation"] == _RELU:
            return f'{out} = FusedConv({ins[0]}, {ins[1]}; {geometry}, activation="Relu")'
        if given["activation"]:
            raise UnreadableError("a convolution with another activation than Relu")
        return f"{out} = Conv({ins[0]}, {ins[1]}; {geometry})"

    def _split(self, place: int, operator: Operator, of: str) -> str:
        """Only in replacements: into the shapes that the outputs of the pattern have."""
        axis, count = operator.parameters["axis"], operator.parameters["num_outputs"]
        names = [self.outputs_after.get((place, out)) for out in range(count)]
        if None in names:
            raise UnreadableError("a split of which not all parts are outputs")
        sizes = ", ".join(f"dim({name}, {axis})" for name in names)
        return f"{', '.join(map(str, names))} = Split({of}; axis={axis}, sizes=[{sizes}])"

    def text(self) -> str:
        """The substitution."""
        before = [self.line(place, each, True) for place, each in enumerate(self.rule.before)]
        after = [self.line(place, each, False) for place, each in enumerate(self.rule.after)]
        if self.way.all_same:
            others = [name for name in self.variables.values() if name not in self.weights]
            for group in (others, sorted(self.weights)):
                for other in group[1:]:
                    self.conditions[f"same_shape({group[0]}, {other})"] = None
        if self.way.is_linear:
            for name in sorted(self.weights):
                self.conditions[f"rank({name}) == 2"] = None
                self.conditions[f"is_static({name})"] = None
        where = ["where", *(f"  {each}" for each in self.conditions)] if self.conditions else []
        head = f"substitution {name_of(self.rule, self.way)}"
        lines = [head, *(f"  {each}" for each in before), "=>", *(f"  {each}" for each in after), *where]
        return "\n".join(lines) + "\n"


def name_of(rule: TasoRule, way: Way) -> str:
    """Of a substitution: its number in TASO's file."""
    return f"taso_{rule.number:03}" + ("_linear" if way.is_linear else "")


def text_of(rule: TasoRule, way: Way) -> str:
    """A rule as a substitution of our library, without a proof.

    Raises:
        UnreadableError: our notation has no words for it.
    """
    return _Writer(rule, way).text()
