"""Proves substitutions case by case, from the axioms."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torchrlopt import _C, _tools
from torchrlopt.substitutions.proof.case import Definitions, Runner, make_case
from torchrlopt.substitutions.proof.comparison import Comparison, Law, NotProved
from torchrlopt.substitutions.proof.forms import Apply, Form, Real, atom
from torchrlopt.substitutions.proof.records import AXIOMS
from torchrlopt.substitutions.proof.rule_text import Rule, parse_rule
from torchrlopt.substitutions.proof.scope import OutOfTime, Scope, Unsupported
from torchrlopt.substitutions.proof.tensors import Tensor

NUM_INSTANCES = 24
"""Instances drawn per substitution; those that take the same path form one case."""


_DRAWN_FOR_ONE = 8  # candidates drawn per chosen instance


@dataclass
class Proof:
    """The result of a proof attempt for one substitution.

    Attributes:
        is_proved: both sides are equal over the real numbers in every case drawn, for all sizes, numbers and
            elements of the case.
        num_cases: distinct cases (ranks, axes, number of members, which sizes are 1 or equal).
        num_instances: drawn instances that these cases cover.
        members: covered sizes of the family.
        reason: why it is not proved: the first case that failed.
    """

    name: str
    is_proved: bool = False
    num_cases: int = 0
    num_instances: int = 0
    members: tuple[int, ...] = ()
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Axioms:
    """The axioms, read from their file.

    Attributes:
        definitions: by operator.
        laws: of functions of real numbers.
        hash: of their content, without comments.
    """

    definitions: dict[str, list[Rule]]
    laws: tuple[Law, ...]
    hash: str


@cache
def load_axioms() -> Axioms:
    """The axioms in `axioms.txt`, in file order.

    Raises:
        SubstitutionError: one is malformed.
    """
    library = _C.Library(AXIOMS.read_text(encoding="utf-8"))
    definitions: dict[str, list[Rule]] = {}
    laws = []
    for name in library.names:
        rule = parse_rule(library.text(name))
        if len(rule.pattern) == 1:
            definitions.setdefault(rule.pattern[0].op, []).append(rule)
        else:
            laws.append(_law(rule))
    return Axioms(definitions, tuple(laws), library.hash)


def _law(rule: Rule) -> Law:
    """Converts a rule to a law on single elements."""
    made = {out for line in rule.pattern for out in line.outs}
    names = sorted({name for line in rule.pattern for name in line.ins if isinstance(name, str)} - made)
    inputs = {name: _number(f"{rule.name}.{name}") for name in names}
    sides = []
    for lines in (rule.pattern, rule.replacement):
        runner = Runner(Scope(), dict(inputs), [], 0, Definitions({}))
        runner.run(lines)
        sides.append(runner.variables[rule.outputs[0]].read(()))
    triggers = frozenset(name for name in _functions(sides[0]) if name not in ("Max", "Min", "Reciprocal"))
    return Law(rule.name, tuple(f"{rule.name}.{name}" for name in names), triggers, sides[0], sides[1])


def _number(name: str) -> Tensor:
    return Tensor("f32", (), lambda index: atom(Real(name)), name)


def _functions(form: Form) -> Iterator[str]:
    for term in form:
        for each in term.atoms:
            if isinstance(each, Apply):
                yield each.function
                for arg in each.args:
                    yield from _functions(arg)


def prove(library: _C.Library, name: str, instances: int = NUM_INSTANCES, timeout_s: float = 120.0) -> Proof:
    """Tries to prove one substitution, in the cases of some drawn instances.

    The processor time `timeout_s`, after which the proof is given up, is a safeguard: Z3's own limit is a
    number of steps, the same on every machine.

    Returns:
        The proof, or the reason why there is none, which does not mean that the substitution is wrong.
    """
    start = time.process_time()
    attempt = _Attempt(parse_rule(library.text(name)), load_axioms(), start + timeout_s, Proof(name))
    proof = attempt.proof
    members: set[int] = set()
    for instance in _diverse(_tools.instances(library, name, _DRAWN_FOR_ONE * instances), instances):
        if not is_inhabited(instance):
            continue
        try:
            proof.reason = attempt.reason_against(instance)
        except OutOfTime:
            proof.reason = f"no proof within {timeout_s:g} s"
        if proof.reason:
            break
        proof.num_instances += 1
        members.add(instance["num_members"])
    if not proof.reason and not proof.num_instances:
        proof.reason = "no instance was drawn"
    proof.is_proved = not proof.reason
    proof.num_cases = len(attempt.proved)
    proof.members = tuple(sorted(members - {0}))
    proof.seconds = time.process_time() - start
    return proof


def _diverse(instances: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The first instance of each kind, by ranks, signs and number of members, then the others in order."""

    def ranks(value: Any) -> Any:
        return tuple(map(ranks, value)) if isinstance(value, list) else len(value[1])

    def signs(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(sorted({signs(each) for each in value}, key=str))
        return value < 0 if isinstance(value, int) else None

    firsts: dict[Any, dict[str, Any]] = {}
    for each in instances:
        if is_inhabited(each):
            shape = tuple(ranks(value) for value in each["tensors"].values())
            sign = tuple(signs(value) for value in each["attributes"].values())
            firsts.setdefault((each["num_members"], shape, sign), each)
    chosen = [*firsts.values()]
    chosen += [each for each in instances if not any(each is first for first in chosen)]
    return chosen[:count]


@dataclass
class _Attempt:
    """Proof attempts for one substitution: the cases proved and failed so far."""

    rule: Rule
    axioms: Axioms
    deadline: float
    proof: Proof
    proved: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)

    def reason_against(self, instance: Mapping[str, Any]) -> str:
        """Empty if the instance's case is proved, with opaque functions or else their definitions."""
        reason = ""
        for opens in (False, True):
            try:
                self._prove(instance, opens)
            except (NotProved, Unsupported) as error:
                reason = str(error)
            except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
                # No definition covers this form of an operator: no proof, but continue with the other cases.
                reason = f"{type(error).__name__} in a definition: {error}"
            else:
                return ""
        return f"{reason}; in the case of\n{instance['graph']}"

    def _prove(self, instance: Mapping[str, Any], opens: bool) -> None:
        case = make_case(self.rule, instance, Definitions(self.axioms.definitions, opens), self.deadline)
        key = f"{opens} {case.key}"
        if key in self.proved:
            return
        if key in self.failed:
            raise NotProved(self.failed[key])
        comparison = Comparison(case, self.axioms.laws if opens else ())
        try:
            comparison.prove()
        except (NotProved, Unsupported) as error:
            self.failed[key] = str(error)
            raise
        self.proved.add(key)


def is_inhabited(instance: Mapping[str, Any]) -> bool:
    """Whether all tensors have elements; only the evaluation covers empty ones."""
    families = [value if isinstance(value, list) else [value] for value in instance["tensors"].values()]
    return all(size > 0 for family in families for _, dims, _ in family for size in dims)
