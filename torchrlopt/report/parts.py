"""Where the speed comes from: calls that kernels replaced, the worth of each part of the gain, a profile."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

ALL, PLAN, KERNELS, RUNTIME, PRECISION = "all", "plan", "kernels", "runtime", "precision"

_WITHOUT = {
    ALL: "the original model",
    PLAN: "the same executor without the plan",
    KERNELS: "the same graph by PyTorch's own calls",
    RUNTIME: "the same graph by PyTorch's own calls",
    PRECISION: "the same graph in the types of the model",
}
_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class Contribution:
    """What one part of the gain is worth: calls with it and without it, alternating.

    The factors of several parts need not multiply to the whole: kernels may be worth more on a planned graph.

    Attributes:
        part: "plan", "kernels", "runtime" or "precision"; "all" for the whole gain.
        without_ms: time of a call without it, in milliseconds.
        with_ms: time of a call with it, in milliseconds.
        spread: half the interquartile range of the measured ratio; None if nothing was measured, because
            there is nothing to leave out, or if the times come from separate measurements.
        is_calm: False if the machine was busy.
    """

    part: str
    without_ms: float
    with_ms: float
    spread: float | None = None
    is_calm: bool = True

    @property
    def factor(self) -> float:
        """How many times as long a call takes without it."""
        return self.without_ms / self.with_ms if self.with_ms > 0 else 1.0

    @property
    def title(self) -> str:
        """The part, in words."""
        return "all of it" if self.part == ALL else f"the {self.part}"

    @property
    def meaning(self) -> str:
        """What it was compared with."""
        return _WITHOUT.get(self.part, self.part)

    def __str__(self) -> str:
        if self.part == PLAN and self.without_ms == self.with_ms:
            return "1.00x: it has no steps"
        spread = "" if self.spread is None else f", spread {self.spread:.0%}"
        busy = "" if self.is_calm else "; the machine was busy"
        times = f"{self.without_ms:.3f} -> {self.with_ms:.3f} ms{spread}{busy}"
        doubt = "" if self.is_clear else ", no clear difference"
        return f"{self.factor:.2f}x against {self.meaning} ({times}{doubt})"

    @property
    def is_clear(self) -> bool:
        """Whether the difference is larger than its spread."""
        return self.spread is None or abs(self.factor - 1) > self.spread


def summed(given: Iterable[tuple[Contribution, ...]]) -> tuple[Contribution, ...]:
    """Add the contributions to the graphs of a model, by part: times are added, the spread is the worst."""
    found: dict[str, Contribution] = {}
    for each in (one for own in given for one in own):
        old = found.get(each.part)
        if old is not None:
            spreads = [spread for spread in (old.spread, each.spread) if spread is not None]
            each = Contribution(
                each.part,
                old.without_ms + each.without_ms,
                old.with_ms + each.with_ms,
                max(spreads, default=None),
                old.is_calm and each.is_calm,
            )
        found[each.part] = each
    return tuple(found.values())


@dataclasses.dataclass(frozen=True)
class Calls:
    """The calls of a lowered graph.

    Attributes:
        kernels: selected kernels, counted by what they compute.
        plain: convolutions, linears, products and attentions by PyTorch's own calls, counted.
        others: all other calls.
        prepared: values that are made of the weights ahead of a call, such as packed weights.
    """

    kernels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    plain: Mapping[str, int] = dataclasses.field(default_factory=dict)
    others: int = 0
    prepared: int = 0

    def __add__(self, other: Calls) -> Calls:
        return Calls(
            _added(self.kernels, other.kernels),
            _added(self.plain, other.plain),
            self.others + other.others,
            self.prepared + other.prepared,
        )

    def __str__(self) -> str:
        rest = [*_counted(self.plain), f"{self.others} other{'s' * (self.others != 1)}"]
        made = f"; {self.prepared} tensors made of the weights ahead" if self.prepared else ""
        count = sum(self.kernels.values())
        if not count:
            return f"no call is by a kernel of ours: {', '.join(rest)}{made}"
        return f"{count} calls ({', '.join(_counted(self.kernels))}); PyTorch's own: {', '.join(rest)}{made}"


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


def _counted(counts: Mapping[str, int]) -> list[str]:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    more = sum(count for _, count in ordered[_SHOWN:])
    return [f"{count} x {name}" for name, count in ordered[:_SHOWN]] + ([f"{more} more"] if more else [])


@dataclasses.dataclass(frozen=True)
class TimedCall:
    """One call of the lowered graph.

    Attributes:
        name: what it computes.
        us: its time by itself, in microseconds, the lower quartile of some runs.
        keys: of the planned graph's nodes that it implements, see `DrawnGraph`.
        module: path of the module that it comes from.
        place: file and line that it comes from.
    """

    name: str
    us: float
    keys: tuple[int, ...] = ()
    module: str = ""
    place: str = ""


@dataclasses.dataclass(frozen=True)
class Profile:
    """The measured times of the calls of one graph.

    Attributes:
        graph_hash: of the graph before the plan.
        call_ms: time of the whole graph, in milliseconds, the lower quartile of runs between those.
        calls: in order.
        num_rounds: how often each was timed.
    """

    graph_hash: str
    call_ms: float
    calls: tuple[TimedCall, ...]
    num_rounds: int

    @property
    def rest_us(self) -> float:
        """What the calls leave of the whole: overhead; less than 0 where kernels run faster in sequence."""
        return self.call_ms * 1e3 - sum(each.us for each in self.calls)

    def alike(self) -> list[tuple[str, str, str, list[int]]]:
        """Name, module, place and positions of calls alike, those that take longest first.

        Modules that differ in their numbers only, as those of repeated layers, are one: "layer.*.linear".
        """
        found: dict[tuple[str, str, str], list[int]] = {}
        for at, each in enumerate(self.calls):
            module = re.sub(r"(?<![^.])\d+(?![^.])", "*", each.module)
            found.setdefault((each.name, module, each.place), []).append(at)
        rows = [
            (name, module if len(own) > 1 else self.calls[own[0]].module, place, own)
            for (name, module, place), own in found.items()
        ]
        return sorted(rows, key=lambda row: -self.us_of(row[3]))

    def us_of(self, calls: Iterable[int]) -> float:
        """The time of some calls together, in microseconds."""
        return sum(self.calls[at].us for at in calls)

    def rows(self) -> list[str]:
        """What `print` shows: the calls that take most time, then the others, then the rest of the call."""
        whole = self.call_ms * 1e3 or 1.0
        rows = [
            (name, module or place, self.us_of(own), len(own)) for name, module, place, own in self.alike()
        ]
        texts = [
            f"{us / 1e3:.3f} ms ({us / whole:.0%}): {f'{count} x ' if count > 1 else ''}{name}"
            f"{f' in {place}' if place else ''}"
            for name, place, us, count in rows[:_SHOWN]
        ]
        others_us = sum(us for _, _, us, _ in rows[_SHOWN:])
        if others_us:
            texts.append(f"{others_us / 1e3:.3f} ms ({others_us / whole:.0%}): all other calls")
        return [*texts, f"{self.rest_us / 1e3:+.3f} ms ({self.rest_us / whole:.0%}): {self.rest_in_words}"]

    @property
    def rest_in_words(self) -> str:
        """What the rest of the call is."""
        return "overhead between calls" if self.rest_us >= 0 else "less, as kernels run in sequences"


@dataclasses.dataclass(frozen=True)
class Environment:
    """Where and how a report was made.

    Attributes:
        processor: its name.
        threads: of PyTorch.
        versions: of packages, by name.
        options: those that differ from the defaults, by name.
        date: local time, to the minute.
    """

    processor: str
    threads: int
    versions: Mapping[str, str]
    options: Mapping[str, Any]
    date: str

    def rows(self) -> list[tuple[str, str]]:
        """Titles and texts."""
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        packages = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return [
            ("made", f"{self.date} on {self.processor}, {threads}; {packages}"),
            ("options", options or "the defaults"),
        ]
