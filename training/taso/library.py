"""Makes a library of what TASO's file holds: each rule in the most general way of writing that is proved."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from torchrlopt import _C
from torchrlopt.errors import SubstitutionError
from torchrlopt.substitutions.proof.layers import Effort, check_one
from torchrlopt.substitutions.proof.records import with_records
from training.taso.notation import UnreadableError, Way, name_of, text_of, ways
from training.taso.rule_file import TasoRule

Outcome = Literal["proved", "tested", "refused"]
FIRST = Effort(bindings=24, seeds=2, instances=0)  # refutes most of what is wrong
FULL = Effort()
_MAX_REASON = 200  # characters
LIBRARY = Path(__file__).parent / "rules.txt"
"""What was made of the file that TASO was released with."""
_HEAD = (
    "# family: taso\n# What the file of substitutions that TASO was released with (Jia et al. 2019) says, "
    "in our notation.\n# Made by `python -m training.taso`; a number is the place in that file. Not a part "
    "of the product.\n"
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """What became of one rule.

    Attributes:
        name: of the substitution.
        outcome: "proved" by Z3, "tested" on random instances only, or "refused".
        text: of the substitution, with the record of its check; empty where it is refused.
        reason: why it is not proved; of the most special way that was tried.
    """

    name: str
    outcome: Outcome
    text: str = ""
    reason: str = ""


def read_rule(rule: TasoRule, *, is_linear: bool = False, full: Effort = FULL) -> Reading:
    """One rule in the most general way that is proved; where there is none, in the one that is tested.

    Args:
        rule: of TASO's file.
        is_linear: its matrix products as linear layers.
        full: effort of the check that counts.
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
        if not first.is_sound:
            reason = first.reason
            continue
        checked = check_one(text, (name,), full)
        if checked.record is None:
            reason = checked.reason
            continue
        recorded = with_records(text, {name: checked.record})
        if checked.record.method == "z3":
            return Reading(name, "proved", recorded)
        tested = tested or Reading(name, "tested", recorded, checked.reason[:_MAX_REASON])
    return tested or Reading(name, "refused", reason=reason.partition("\n")[0][:_MAX_REASON])


def read_all(rules: Sequence[TasoRule], state: Path, full: Effort = FULL) -> Iterator[Reading]:
    """All rules, and those of matrix products as linear layers too; goes on where the state ends.

    Args:
        rules: of TASO's file.
        state: a file of JSON lines, of what is done.
        full: see `read_rule`.
    """
    done: dict[str, Reading] = {}
    if state.exists():
        lines = state.read_text(encoding="utf-8").splitlines()
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
    """The text of a library of what is proved."""
    return _HEAD + "".join(f"\n{each.text}" for each in readings if each.outcome == "proved")
