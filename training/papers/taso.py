"""Converts the substitutions released with TASO: `python -m training.papers.taso graph_subst.pb`.

Facts only, no code of TASO: each of its rules is written in the notation of our library, in the most general
form that is proved. TASO's rules do not mention shapes: a match counts if TASO can make the replacement. Here
the required shapes are explicit conditions, which can be written in several ways; the verifier decides which
of them holds. TASO's operator semantics are kept: a convolution has stride 1 and preserves the size of its
input, and a concatenation axis applies to one rank.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError
from torchrlopt.substitutions.proof.layers import Effort, check_one, require_z3
from torchrlopt.substitutions.proof.records import with_records
from training.papers.taso_file import Operator, Source, TasoRule, read_rules
from training.progress import progress_bar

RULES = Path(__file__).with_name("taso_rules.txt")
"""The library converted from the file that TASO was released with."""
FIRST = Effort(bindings=24, seeds=2, instances=0)  # cheap filter: refutes most of the wrong rules
FULL = Effort()
_MAX_REASON = 200
_NAMES = "abcefhijkl"  # without the letters of attributes
_GEOMETRY = "strides=s, pads=p, dilations=d, group="
_RELU, _SAME = 2, 0  # codes of an activation and of a padding
_WRITTEN = {"add": "Add", "mul": "Mul", "matmul": "MatMul", "relu": "Relu"}
_HEAD = (
    "# family: taso\n# What the file of substitutions that TASO was released with (Jia et al. 2019) says, "
    "in our notation.\n# Made by `python -m training.papers.taso`; a number is the place in that file. "
    "Not a part of the product.\n"
)


class UnreadableError(Exception):
    """A rule that our notation cannot express; the message says why."""


@dataclasses.dataclass(frozen=True)
class Way:
    """The shape conditions added to a rule.

    Attributes:
        same_shape: operands of sums and products have equal shapes.
        all_same: all variables other than weights have equal shapes, and so do all weights.
        one_group: convolutions have one group.
        matrices: operands of matrix products are matrices.
        is_linear: right operands of matrix products are weights, so that they are linear layers.
    """

    same_shape: bool = False
    all_same: bool = False
    one_group: bool = False
    matrices: bool = False
    is_linear: bool = False


def ways(rule: TasoRule, *, is_linear: bool = False) -> Iterator[Way]:
    """Ways to write a rule, from the weakest conditions to the strongest."""
    ops = {operator.op for operator in (*rule.before, *rule.after)}
    shapes = [(False, False)]
    if ops & {"add", "mul"}:
        shapes.append((True, False))
    if ops & {"add", "mul", "concat"}:
        shapes.append((True, True))
    groups, matrices = ((False, True) if op in ops else (False,) for op in ("conv", "matmul"))
    for shape, group, matrix in itertools.product(shapes, groups, matrices):
        yield Way(*shape, group, matrix, is_linear)


def name_of(rule: TasoRule, way: Way) -> str:
    """Name of a substitution: its number in TASO's file."""
    return f"taso_{rule.number:03}" + ("_linear" if way.is_linear else "")


def text_of(rule: TasoRule, way: Way) -> str:
    """A rule as a substitution of our library, without a proof.

    Raises:
        UnreadableError: our notation cannot express it.
    """
    return _Writer(rule, way).text()


class _Writer:
    """Writes one rule in one way."""

    def __init__(self, rule: TasoRule, way: Way) -> None:
        self.rule, self.way = rule, way
        self.variables: dict[int, str] = {}
        self.weights: set[str] = set()
        self.conditions: dict[str, None] = {}
        several = len(rule.outputs) > 1
        names = [f"y{place + 1}" if several else "y" for place in range(len(rule.outputs))]
        self.outputs = dict(zip((before for before, _ in rule.outputs), names, strict=True))
        self.outputs_after = {after: self.outputs[before] for before, after in rule.outputs}
        self.has_conv = False

    def name(self, source: Source, is_before: bool) -> str:
        """Name of a value on one side."""
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
        """The line of one operator."""
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
        is_linear = operator.op == "matmul" and self.way.is_linear
        if operator.op == "matmul" and operator.parameters.get("activation", 0):
            raise UnreadableError("a matrix product with an activation")
        if is_linear and is_before and operator.inputs[1][0] >= 0:
            raise UnreadableError("a linear layer whose weight is computed by the pattern")
        return f"{out} = {'FusedMatMul' if is_linear else _WRITTEN[operator.op]}({', '.join(ins)})"

    def _require(self, *conditions: str) -> None:
        self.conditions |= dict.fromkeys(conditions)

    def _conditions_of(self, operator: Operator, ins: list[str], out: str) -> None:
        if operator.op in ("add", "mul") and self.way.same_shape:
            self._require(f"same_shape({ins[0]}, {ins[1]})")
        if operator.op == "matmul":
            self._require(*(f"rank({each}) {'==' if self.way.matrices else '>='} 2" for each in ins))
        if operator.op == "concat":
            rank, axis = operator.parameters["rank"], operator.parameters["axis"]
            place = int(out[1:]) if out[0] == "t" else len(self.rule.before)
            self._require(f"rank({out}) == {rank}", f"norm_axis(axis{place}, rank({out})) == {axis}")

    def _conv(self, operator: Operator, ins: list[str], out: str, is_before: bool) -> str:
        given = operator.parameters
        if (given["stride_h"], given["stride_w"], given["padding"]) != (1, 1, _SAME):
            raise UnreadableError("a convolution with a stride, or without padding")
        if not self.has_conv:
            same_size = f"slice(shape({out}), 2, 4) == slice(shape({ins[0]}), 2, 4)"
            self._require("all_equal(s, 1)", same_size, f"rank({ins[0]}) == 4")
        self.has_conv = True
        groups = "1" if self.way.one_group else "g"
        geometry = _GEOMETRY + (f"{groups} * 2" if not is_before and self._as_groups() else groups)
        if given["activation"] == _RELU:
            return f'{out} = FusedConv({ins[0]}, {ins[1]}; {geometry}, activation="Relu")'
        if given["activation"]:
            raise UnreadableError("a convolution with another activation than Relu")
        return f"{out} = Conv({ins[0]}, {ins[1]}; {geometry})"

    def _as_groups(self) -> bool:
        """Whether the replacement convolves two concatenated inputs with two concatenated kernels, as groups.

        TASO infers the number of groups from the channels of input and kernel: here there are twice as many.
        """

        def axis(source: Source) -> int | None:
            made_by = self.rule.after[source[0]] if source[0] >= 0 else None
            return made_by.parameters["axis"] if made_by is not None and made_by.op == "concat" else None

        return any(each.op == "conv" and [*map(axis, each.inputs)] == [1, 0] for each in self.rule.after)

    def _split(self, place: int, operator: Operator, of: str) -> str:
        """A split, allowed only in replacements: into the shapes of the pattern's outputs."""
        axis, count = operator.parameters["axis"], operator.parameters["num_outputs"]
        names = [self.outputs_after.get((place, out)) for out in range(count)]
        if None in names:
            raise UnreadableError("a split of which not all parts are outputs")
        sizes = ", ".join(f"dim({name}, {axis})" for name in names)
        return f"{', '.join(map(str, names))} = Split({of}; axis={axis}, sizes=[{sizes}])"

    def text(self) -> str:
        """The text of the substitution."""
        before = [self.line(place, each, True) for place, each in enumerate(self.rule.before)]
        after = [self.line(place, each, False) for place, each in enumerate(self.rule.after)]
        if self.way.all_same:
            others = [name for name in self.variables.values() if name not in self.weights]
            for group in (others, sorted(self.weights)):
                self._require(*(f"same_shape({group[0]}, {other})" for other in group[1:]))
        if self.way.is_linear:
            for name in sorted(self.weights):
                self._require(f"rank({name}) == 2", f"is_static({name})")
        where = ["where", *(f"  {each}" for each in self.conditions)] if self.conditions else []
        head = f"substitution {name_of(self.rule, self.way)}"
        lines = [head, *(f"  {each}" for each in before), "=>", *(f"  {each}" for each in after), *where]
        return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True)
class Reading:
    """Conversion result of one rule.

    Attributes:
        name: of the substitution.
        outcome: "proved" by Z3, "tested" on random instances only, or "refused".
        text: of the substitution, with the record of its check; empty if it is refused.
        reason: why the most specific form that was tried is not proved.
    """

    name: str
    outcome: str
    text: str = ""
    reason: str = ""


def read_rule(rule: TasoRule, *, is_linear: bool = False, full: Effort = FULL) -> Reading:
    """Convert one rule to the most general form that is proved; failing that, to one that passes the tests.

    Args:
        rule: of TASO's file.
        is_linear: whether its matrix products are linear layers.
        full: effort of the decisive check.
    """
    name = name_of(rule, Way(is_linear=is_linear))
    tested: Reading | None = None
    reason = ""
    for way in ways(rule, is_linear=is_linear):
        try:
            text = text_of(rule, way)
            _C.Library(text)
        except UnreadableError as error:
            return Reading(name, "refused", reason=str(error))
        except SubstitutionError as error:
            reason = error.reason
            continue
        first = check_one(text, (name,), FIRST)
        checked = check_one(text, (name,), full) if first.is_sound else first
        if checked.record is None or not first.is_sound:
            reason = checked.reason
            continue
        recorded = with_records(text, {name: checked.record})
        if checked.record.method == "z3":
            return Reading(name, "proved", recorded)
        tested = tested or Reading(name, "tested", recorded, checked.reason[:_MAX_REASON])
    return tested or Reading(name, "refused", reason=reason.partition("\n")[0][:_MAX_REASON])


def read_all(rules: Sequence[TasoRule], state: Path, full: Effort = FULL) -> Iterator[Reading]:
    """Convert all rules, those with matrix products also as linear layers; resumes where the state ends.

    Args:
        rules: of TASO's file.
        state: JSON lines file of finished rules.
        full: see `read_rule`.
    """
    lines = state.read_text(encoding="utf-8").splitlines() if state.exists() else []
    done = {each.name: each for each in (Reading(**json.loads(line)) for line in lines)}
    for rule in rules:
        has_products = any(each.op == "matmul" for each in (*rule.before, *rule.after))
        for is_linear in (False, True) if has_products else (False,):
            reading = done.get(name_of(rule, Way(is_linear=is_linear)))
            if reading is None:
                reading = read_rule(rule, is_linear=is_linear, full=full)
                with state.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(reading)) + "\n")
            yield reading


def library_of(readings: Iterable[Reading]) -> str:
    """The text of a library of the proved rules."""
    return _HEAD + "".join(f"\n{each.text}" for each in readings if each.outcome == "proved")


def main(
    file: Annotated[Path, typer.Argument(help="`graph_subst.pb` of TASO's repository.")],
    out: Annotated[Path, typer.Option(help="Library to write.")] = Path("runs/taso/rules.txt"),
    first: Annotated[int | None, typer.Option(min=1, help="Only so many rules.")] = None,
) -> None:
    """Convert TASO's substitutions to our notation, test and prove each; an interrupted run is resumed."""
    require_z3()
    rules = read_rules(file)[:first]
    out.parent.mkdir(parents=True, exist_ok=True)
    readings: list[Reading] = []
    with progress_bar() as progress:
        bar = progress.add_task("rules", total=len(rules))
        for reading in read_all(rules, out.with_suffix(".jsonl")):
            readings.append(reading)
            progress.update(bar, description=reading.name, advance=not reading.name.endswith("_linear"))
    out.write_text(library_of(readings), encoding="utf-8")
    table = pd.DataFrame([(each.name.endswith("_linear"), each.outcome) for each in readings])
    typer.echo(
        table.rename(columns={0: "as linear layers", 1: "outcome"}).value_counts(sort=False).to_string()
    )
    for each in readings:
        if each.outcome != "proved":
            typer.echo(f"{each.name} {each.outcome}: {each.reason}")
    typer.echo(out)


if __name__ == "__main__":
    typer.run(main)
