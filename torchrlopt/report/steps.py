"""The steps of a plan for the reader: what was applied, what it saved, and what it means."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

#: The meaning of each family of the library in words, in reporting order.
_MEANINGS = {
    "computed otherwise": ("algebra", "convolution"),
    "merged": ("merge", "parallel", "hoist"),
    "folded into weights": ("fold",),
    "fused": ("recognise", "activation", "epilogue"),
    "moved less": ("movement",),
    "left out": ("clean",),
    "normal form": ("normalise",),
}
_OTHER = "other steps"


@dataclasses.dataclass(frozen=True)
class ReportStep:
    """One substitution that was applied.

    Attributes:
        substitution: its name in the library.
        location: index of the match among the matches of that substitution, in canonical order.
        cost_ms: predicted time of the whole graph after the step, in milliseconds.
        saved_ms: predicted time that the step saves, in milliseconds.
        family: of the substitution, see docs/substitutions.md.
        proof: whether the substitution is "proved", only "tested", or "assumed".
    """

    substitution: str
    location: int
    cost_ms: float
    saved_ms: float = 0.0
    family: str = ""
    proof: str = ""


@dataclasses.dataclass(frozen=True)
class StepGroup:
    """Steps with the same meaning.

    Attributes:
        meaning: in words.
        counts: how often each substitution was applied, the most frequent first.
        saved_ms: predicted, in milliseconds; negative for steps that only prepare others.
    """

    meaning: str
    counts: dict[str, int]
    saved_ms: float

    def __str__(self) -> str:
        names = ", ".join(f"{count} x {name}" for name, count in self.counts.items())
        return f"{abs(self.saved_ms):.3f} ms {'less' if self.saved_ms >= 0 else 'more'}: {names}"


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """How much longer a plan without the steps of one group takes.

    Attributes:
        meaning: of the group.
        predicted_ms: predicted, in milliseconds.
        measured_ms: measured, in milliseconds.
        spread_ms: uncertainty of that: half the interquartile range of the rounds.
    """

    meaning: str
    predicted_ms: float
    measured_ms: float
    spread_ms: float

    def __str__(self) -> str:
        measured = f"{self.measured_ms:+.3f} ms measured (spread {self.spread_ms:.3f})"
        return f"without '{self.meaning}': {self.predicted_ms:+.3f} ms predicted, {measured}"


def grouped(steps: Iterable[ReportStep]) -> list[StepGroup]:
    """Group the steps by meaning."""
    counts: dict[str, Counter[str]] = {meaning: Counter() for meaning in (*_MEANINGS, _OTHER)}
    saved = dict.fromkeys(counts, 0.0)
    for step in steps:
        meaning = meaning_of(step.family)
        counts[meaning][step.substitution] += 1
        saved[meaning] += step.saved_ms
    return [
        StepGroup(meaning, dict(names.most_common()), saved[meaning])
        for meaning, names in counts.items()
        if names
    ]


def meaning_of(family: str) -> str:
    """Return a key of `_MEANINGS`, or `_OTHER`."""
    return next((meaning for meaning, families in _MEANINGS.items() if family in families), _OTHER)
