"""The `Report`: what happened to one graph, or to all graphs of a model.

Made from the events of a compilation (`journal.py`), printed for the user (`print(model.report)`), saved as
JSON (`to_json`).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from html import escape
from pathlib import Path
from typing import Any, Literal

from torchrlopt.errors import UnsupportedError
from torchrlopt.report.drawing import Record
from torchrlopt.report.executors import OPEN, Candidate, Choice, MeasuredPlan, Part
from torchrlopt.report.parts import PLAN, Calls, Contribution, Environment, Profile, summed
from torchrlopt.report.precision import PrecisionRecord
from torchrlopt.report.reading import instance_of
from torchrlopt.report.search import SearchRecord
from torchrlopt.report.steps import LeftOut, ReportStep, StepGroup, grouped
from torchrlopt.storage.plan_file import SavedPlan
from torchrlopt.storage.repro_folder import Repro

Kept = Literal["rewritten", "original", "planned", "undecided"]

_UNCHANGED: tuple[Kept, ...] = ("original", "undecided")  # what the original computes
_PRECEDENCE: tuple[Kept, ...] = ("rewritten", "undecided", "planned")  # which one describes several graphs


@dataclasses.dataclass(frozen=True)
class Timing:
    """Alternating timing of two callables on the same inputs.

    Attributes:
        before_ms: lower quartile of the first one's times, in milliseconds, of calls in which the process had
            its processors.
        after_ms: the same of the second.
        gain: 1 - after_ms / before_ms; positive if the second is faster.
        spread: half the interquartile range of after / before, with the times paired in order.
        num_rounds: pairs of such times.
        is_calm: False if it hardly ever had its processors: then all times count, whatever slowed them.
        taken_at: when, in seconds since the epoch.
        is_bound: whether the times are a bound, so that the graphs differ by at least as much: waits were
            subtracted from the slower one, but not from the quicker one.
    """

    before_ms: float
    after_ms: float
    gain: float
    spread: float
    num_rounds: int
    is_calm: bool = True
    taken_at: float = dataclasses.field(default_factory=time.time, compare=False)
    is_bound: bool = False


@dataclasses.dataclass
class Status:
    """State that calls change after compilation. The compiled graph owns it, and all its reports share it.

    Attributes:
        kept: which graph is used; "planned" if `explain` has only made a plan; "undecided" if the original
            runs until calls choose.
        fallback_reason: why the original is used although a rewrite was requested; None otherwise.
        weight_sets: sets of weights that the rewritten graph has seen: the first ones, and those after a
            change, if it evaluates expressions over weights.
        checked_sets: those of them for which its outputs were compared with the original's.
        calibration: on how many further calls the error of lower precision was measured; None for none.
        precision: how the error budget is used, for each graph; empty without a budget.
        exact_since: why the graph computes in float32 although it was built in lower precision.
        by_size: which graph runs for calls of other sizes than the first, if sizes vary, with both times.
        by_calls: whether calls choose the executor: "on", or "off" and why; None if that was not asked for.
        candidates: among which calls choose, or have chosen.
        settled: done once each graph's choice is over, or nobody is left to make it.
        repro: the reproduction of the failure that led to the original, see `Report.dump_repro`.
    """

    kept: Kept = "original"
    fallback_reason: str | None = None
    weight_sets: int = 0
    checked_sets: int = 0
    calibration: str | None = None
    precision: tuple[PrecisionRecord, ...] = ()
    exact_since: str | None = None
    by_size: list[str] = dataclasses.field(default_factory=list)
    by_calls: str | None = None
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    settled: tuple[Future[None], ...] = dataclasses.field(default=(), compare=False, repr=False)
    repro: Repro | None = dataclasses.field(default=None, compare=False, repr=False)

    def keep_original(self, reason: str) -> None:
        """Run the original from now on."""
        self.kept, self.fallback_reason = "original", reason

    @property
    def is_compiled(self) -> bool:
        """Whether calls run what was compiled, be it only to choose."""
        return self.kept in ("rewritten", "undecided")

    @property
    def is_open(self) -> bool:
        """Whether calls are choosing the executor."""
        return any(each.state in OPEN for each in self.candidates)

    def note_sizes(self, num_bits: Iterable[int], timing: Timing, is_faster: bool) -> None:
        """Record which graph runs for sizes of so many bits; a number that is 1 in all calls is no size."""
        largest = " x ".join(dict.fromkeys(str((1 << bits) - 1) for bits in num_bits if bits > 1))
        kept = "rewritten" if is_faster else "original"
        self.by_size.append(f"up to {largest}: {kept}, {timing.before_ms:.3f} -> {timing.after_ms:.3f} ms")


def _merged(default: Any, merge: Callable[[list[Any]], Any], **options: bool) -> Any:
    """A field of a report; `merge` makes its value for several graphs of the values for each."""
    # The overloads do not take flags by a mapping.
    return dataclasses.field(default=default, metadata={"merge": merge}, **options)  # type: ignore[call-overload]


def _joined(names: Any) -> str:
    return ", ".join(dict.fromkeys(name for name in names if name))


def _total(values: list[Any]) -> Any:
    """Sum of the values that are not None; None if there is none."""
    taken = [value for value in values if value is not None]
    return sum(taken) if taken else None


def _worst(values: list[float | None]) -> float | None:
    """Largest of the values that are not None; None if there is none."""
    return max((value for value in values if value is not None), default=None)


def _all_calls(values: list[Calls | None]) -> Calls | None:
    known = [value for value in values if value is not None]
    return sum(known, start=Calls()) if known else None


def _first(values: list[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _chained(tuples: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(itertools.chain.from_iterable(tuples))


def _each_once(tuples: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_chained(tuples)))


@dataclasses.dataclass(frozen=True)
class Report:
    """The record of one optimisation; numbers that were not measured are None.

    Attributes:
        status: which graph runs and why. Calls may change it; reports of one compiled graph share it.
        searcher: that chose the steps.
        executor: that runs the kept graph.
        steps: the substitutions applied, in order; also those of a rewrite that was not kept.
        cost_before_ms: predicted time of the original graph, in milliseconds.
        cost_after_ms: predicted time of the rewritten graph, in milliseconds.
        measured_share: fraction of `cost_after_ms` that comes from measured prices; the rest is analytic.
        measured_before_ms: measured time of the original graph, in milliseconds; see `Timing`.
        measured_after_ms: measured time of the rewritten graph, in milliseconds.
        measured_spread: half the interquartile range of the measured ratio, relative to the ratio.
        measured_is_bound: whether the graphs differ by at least as much; see `Timing.is_bound`.
        measured_is_calm: False if other processes, or a quota, held up nearly every timed call.
        numerical_error: root mean square error of the rewritten graph against float64, as a multiple of
            the original's own (1.0: as exact as the original); of the worst output.
        weight_bytes: size of the model's weights, if the rewritten graph was built.
        packed_bytes: size of evaluated expressions over weights held in addition, with `weights="frozen"`.
        released_bytes: how much of `weight_bytes` was moved to files, see the option `release_weights`.
        phases_ms: wall time of each phase, in milliseconds.
        is_cache_hit: whether the plan came from the plan store, or the whole result from memory.
        num_nodes_before: operators that run in every call, in the graph that was read.
        num_nodes_after: the same in the rewritten graph, without expressions over weights.
        opaque: operators without a translation, left unchanged.
        notes: further information: why operators were left alone, what was not checked.
        num_graphs: graphs that this report covers (a model with graph breaks has several).
        cut: where Dynamo broke the graph before the call was over; empty if it did not.
        choices: executors that were tried, or left out, if there were several; empty otherwise.
        measured_plans: plans that were timed next to the searched one, see the option `measure_plans`.
        calls: the calls of the rewritten graph, if it runs in PyTorch.
        split: what parts of the gain are worth by themselves, see `contributions`.
        profiles: measured times of the calls, of each graph for which `measure_parts` asks.
        environment: machine, versions, options and date; of the first graph.
        parts: which executor runs which part, in call order, if the executor takes only parts of the graph;
            empty otherwise.
        graph_hash: SHA-256 of the graph that was planned, see `plan.search.graph_hash`.
        plans: the plan of each graph so far, as `SavedPlan` holds them.
        searches: how the plan of each graph was found.
        left_out: what each group of steps is worth, if `explain` has measured it.
        records: what `save` draws the graphs from, one for each; not in the JSON.
    """

    status: Status = dataclasses.field(default_factory=Status)
    searcher: str = _merged("", _joined)
    executor: str = _merged("", _joined)
    steps: tuple[ReportStep, ...] = _merged((), _chained)
    cost_before_ms: float | None = _merged(None, _total)
    cost_after_ms: float | None = _merged(None, _total)
    measured_share: float | None = None
    measured_before_ms: float | None = _merged(None, _total)
    measured_after_ms: float | None = _merged(None, _total)
    measured_spread: float | None = _merged(None, _worst)
    measured_is_calm: bool = _merged(True, all)
    measured_is_bound: bool = _merged(False, any)
    numerical_error: float | None = _merged(None, _worst)
    weight_bytes: int | None = _merged(None, _total)
    packed_bytes: int | None = _merged(None, _total)
    released_bytes: int = _merged(0, sum)
    phases_ms: dict[str, float] = dataclasses.field(default_factory=dict)
    is_cache_hit: bool = _merged(False, lambda each: bool(each) and all(each))
    num_nodes_before: int = _merged(0, sum)
    num_nodes_after: int = _merged(0, sum)
    opaque: tuple[str, ...] = _merged((), _each_once)
    notes: tuple[str, ...] = _merged((), _each_once)
    num_graphs: int = _merged(1, sum)
    cut: str = _merged("", _joined)
    choices: tuple[Choice, ...] = _merged((), _chained)
    measured_plans: tuple[MeasuredPlan, ...] = _merged((), _chained)
    parts: tuple[Part, ...] = _merged((), _chained)
    calls: Calls | None = _merged(None, _all_calls)  # noqa: RUF009  # a field, as the others
    split: tuple[Contribution, ...] = _merged((), summed)
    profiles: tuple[Profile, ...] = _merged((), _chained)
    environment: Environment | None = _merged(None, _first)  # noqa: RUF009  # a field, as the others
    graph_hash: str = _merged("", _joined)
    plans: tuple[dict[str, Any], ...] = _merged((), _chained)
    searches: tuple[SearchRecord, ...] = _merged((), _chained)
    left_out: tuple[LeftOut, ...] = _merged((), _chained)
    records: tuple[Record, ...] = _merged((), _chained, compare=False, repr=False)

    @property
    def kept(self) -> Kept:
        """Which graph runs now, see `Status`."""
        return self.status.kept

    @property
    def fallback_reason(self) -> str | None:
        """Why the original runs, see `Status`."""
        return self.status.fallback_reason

    @property
    def weight_sets(self) -> int:
        """Sets of weights so far, see `Status`."""
        return self.status.weight_sets

    @property
    def checked_sets(self) -> int:
        """Sets of weights for which outputs were compared with the original's, see `Status`."""
        return self.status.checked_sets

    @property
    def precision(self) -> tuple[PrecisionRecord, ...]:
        """How the error budget is used, see `Status`."""
        return self.status.precision

    @property
    def plan(self) -> SavedPlan:
        """The plans of all graphs, for saving: `report.plan.save(path)`; see `torchrlopt.apply_plan`."""
        return SavedPlan.made_here(self.plans)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until calls have chosen the executor of each graph so far, see the option `executor`.

        Candidates are built meanwhile, but other threads have to make the calls.

        Args:
            timeout: in seconds; None for no limit.

        Returns:
            Whether they have; False after the timeout, and in a child that was forked before.
        """
        wait(self.status.settled, timeout)
        return not self.status.is_open

    def dump_repro(self, folder: str | Path) -> Path:
        """Write a reproduction of the failure, `python folder/repro.py`, with random weights of these types.

        The folder also contains the graph as text, options, versions and inputs, the plan if there was one,
        and the traceback. It contains none of the model's weights.

        Args:
            folder: created if it does not exist.

        Returns:
            The folder.

        Raises:
            UnsupportedError: nothing failed, or it cannot be reproduced because there was no graph.
            OSError: the folder cannot be written.
        """
        if self.status.repro is None:
            raise UnsupportedError(
                "there is no failure of a graph that could be repeated",
                got=self.fallback_reason or f"the {self.kept} graph runs",
            )
        return self.status.repro.write(folder)

    @property
    def runs_in(self) -> str:
        """The executor of calls now: calls may have chosen another than `executor`."""
        return (
            _joined(each.executor for each in self.status.candidates if each.state == "chosen")
            or self.executor
        )

    @property
    def speedup(self) -> float:
        """Measured time before over after; 1.0 if the original is kept or nothing was measured."""
        if self.kept in _UNCHANGED or not self.measured_before_ms or not self.measured_after_ms:
            return 1.0
        return self.measured_before_ms / self.measured_after_ms

    def to_json(self) -> str:
        """Return the whole report as a JSON object, without the graphs and `repro`."""
        status = dataclasses.replace(self.status, repro=None, settled=())
        fields = dataclasses.asdict(dataclasses.replace(self, status=status, records=()))
        state = fields.pop("status")
        del fields["records"], state["repro"], state["settled"]
        return json.dumps(state | fields, indent=2)

    def save(self, path: str | Path, title: str = "") -> None:
        """Write the report as one self-contained HTML page: no network, no other file.

        It shows both graphs, with changes coloured, the operators by time, the steps one by one, the user's
        lines behind them, and everything that `print` shows. A report that was read from JSON has no graphs.

        Args:
            path: of the page; it is overwritten.
            title: of the page, such as the model's name.
        """
        from torchrlopt.report.page.page import page  # rarely needed

        Path(path).write_text(page(self, title), encoding="utf-8")

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote.

        Raises:
            UnsupportedError: the text is damaged, or of another version.
        """
        try:
            fields = json.loads(text)
            state = {
                each.name: fields.pop(each.name) for each in dataclasses.fields(Status) if each.name in fields
            }
            return dataclasses.replace(instance_of(cls, fields), status=instance_of(Status, state))
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise UnsupportedError(
                "the text is no report, or one of another version",
                expected="what Report.to_json of this version wrote",
                got=str(error),
            ) from error

    @classmethod
    def merged(cls, reports: Sequence[Report]) -> Report:
        """Merge the reports of all graphs of a model: steps in order, times added, the worst error.

        `kept` is "rewritten" if any graph was rewritten; the reasons of the others are joined.
        """
        if len(reports) == 1:
            return reports[0]
        phases: dict[str, float] = {}
        for report in reports:
            for name, ms in report.phases_ms.items():
                phases[name] = phases.get(name, 0.0) + ms
        return cls(
            status=_merged_status([r.status for r in reports]),
            measured_share=_share(reports),
            phases_ms=phases,
            **{
                each.name: each.metadata["merge"]([getattr(report, each.name) for report in reports])
                for each in dataclasses.fields(cls)
                if each.metadata
            },
        )

    def __str__(self) -> str:
        # rich is slow to import, and most reports are never printed
        from rich.table import Table

        from torchrlopt.console import text_of

        table = Table(title="torchrlopt", show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, text in self.rows():
            table.add_row(name, text)
        return text_of(table, width=110)

    def _repr_html_(self) -> str:
        """The same table in a notebook."""
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self.rows())
        return f"<table>{''.join(rows)}</table>"

    def rows(self) -> list[tuple[str, str]]:
        """Names and texts of the printed table, without numbers that were not measured."""
        rows = [("result", self.summary)]
        others = ", other graphs as they were" if self.kept != "original" else ""
        rows.append(
            ("kept", f"{self.kept}{others}: {self.fallback_reason}" if self.fallback_reason else self.kept)
        )
        graphs = f" in {self.num_graphs} graphs" if self.num_graphs > 1 else ""
        rows.append(("executor", self.executor))
        if self.status.by_calls is not None:
            rows.append(("  chosen by calls", self.status.by_calls))
        rows.extend(("  candidate", str(each)) for each in self.status.candidates)
        rows.append(("operators", f"{self.num_nodes_before} -> {self.num_nodes_after}{graphs}"))
        if self.cut:
            rows.append(("cut", f"{self.cut}; what is outside of graphs runs as it was"))
        if self.measured_before_ms is not None and self.measured_after_ms is not None:
            ratio = self.measured_before_ms / self.measured_after_ms
            spread = f", spread {self.measured_spread:.0%}" if self.measured_spread is not None else ""
            times = f"{self.measured_before_ms:.3f} -> {self.measured_after_ms:.3f} ms"
            rows.append(("measured", f"{times} ({ratio:.2f}x{spread}){self._busy}"))
        rows.extend((f"  by {each.title}", str(each)) for each in self.contributions)
        if self.numerical_error is not None:
            sets = f", {self.checked_sets} of {self.weight_sets} sets of weights checked"
            error = f"{self.numerical_error:.2f} times the original's"
            rows.append(("error to float64", error + (sets if self.weight_sets > 1 else "")))
        rows.extend(row for each in self.precision for row in each.rows())
        if self.status.calibration is not None:
            rows.append(("  calibration", self.status.calibration))
        if self.status.exact_since is not None:
            rows.append(("in float32 since", self.status.exact_since))
        rows.append(("plan", self.plan_in_words))
        rows.extend((f"  {group.meaning}", str(group)) for group in self.step_groups())
        if self.steps and self.prediction is not None:
            rows.append(("  all, predicted", self.prediction))
        rows.extend(("  worth", str(each)) for each in self.left_out)
        if self.calls is not None:
            rows.append(("kernels", str(self.calls)))
        rows.extend(("tried", str(choice)) for choice in self.choices)
        rows.extend(("plan timed", str(each)) for each in self.measured_plans)
        rows.extend(("part", str(part)) for part in self.parts)
        for each in self.profiles:
            rows.extend(
                zip(itertools.chain(["a call takes"], itertools.repeat("")), each.rows(), strict=False)
            )
        if self.weight_bytes is not None:
            rows.append(("held", self._held))
        if self.opaque:
            rows.append(("left alone", ", ".join(self.opaque)))
        rows.extend(("sizes", text) for text in self.status.by_size)
        rows.extend(("note", note) for note in self.notes)
        rows.append(("phases", ", ".join(f"{name} {ms:.0f} ms" for name, ms in self.phases_ms.items())))
        rows.extend(("next", text) for text in self.advice)
        return [*rows, *(self.environment.rows() if self.environment is not None else ())]

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        """What parts of the gain are worth by themselves, as far as it is known.

        All of it with the option `measure_parts`. Otherwise that a plan without steps is worth nothing, and
        what it is worth if the executor was tried without it, too.
        """
        known = {each.part for each in self.split}
        after_ms = self.measured_after_ms
        if PLAN in known or after_ms is None or self.kept != "rewritten" or self.num_graphs != 1:
            return self.split
        if not self.steps:
            return (Contribution(PLAN, after_ms, after_ms), *self.split)
        ratios = {each.searcher: each.ratio for each in self.choices if each.executor == self.executor}
        plain, planned = ratios.get("none"), ratios.get(self.searcher)
        if not plain or not planned:
            return self.split
        return (Contribution(PLAN, after_ms * plain / planned, after_ms), *self.split)

    @property
    def plan_in_words(self) -> str:
        """How many steps it has, and who found it."""
        count = f"{len(self.steps)} step{'s' * (len(self.steps) != 1)}"
        finders = _joined(search.finder for search in self.searches) if self.steps else ""
        found = f", found by {finders}" if finders else ""
        return f"{count}{found}{', from the plan store' if self.is_cache_hit else ''}"

    @property
    def prediction(self) -> str | None:
        """What the cost model predicts for the plan alone, which is no prediction of the measured times."""
        if self.cost_before_ms is None or self.cost_after_ms is None:
            return None
        less = (
            f"{1 - self.cost_after_ms / self.cost_before_ms:.0%} less" if self.cost_before_ms else "nothing"
        )
        prices = f"{self.measured_share:.0%} of it measured" if self.measured_share else "none of it measured"
        times = f"{self.cost_before_ms:.3f} -> {self.cost_after_ms:.3f} ms"
        return f"{less} for the plan alone, in prices of operators ({times}, {prices})"

    @property
    def advice(self) -> list[str]:
        """What to do next, at most three sentences."""
        given = {} if self.environment is None else self.environment.options
        is_built = self.kept == "rewritten"
        known = [
            (bool(self.cut), "avoid what ends the graph, so that one graph holds the whole call"),
            (
                not all([self.measured_is_calm, *(each.is_calm for each in self.split)]),
                "measure again while the machine is idle: these times are noisy",
            ),
            (
                is_built and not self.split,
                "measure_parts=True measures what plan and kernels are worth by themselves",
            ),
            (
                is_built and "weights" not in given,
                'weights="frozen" saves the check of all weights in each call',
            ),
            (
                not self.measured_share and bool(self.steps),
                "torchrlopt profile measures the prices that plans are made by",
            ),
            (is_built, 'torchrlopt.save(model, "fast.rlopt") keeps the result for other processes'),
        ]
        return [text for is_meant, text in known if is_meant][:3]

    @property
    def summary(self) -> str:
        """The gain, in one sentence."""
        fewer = f"{self.num_nodes_after} instead of {self.num_nodes_before} operators"
        if self.kept == "planned":
            predicted = f"{self.cost_before_ms:.3f} -> {self.cost_after_ms:.3f} ms predicted"
            return f"a plan, not built: {fewer}, {predicted}"
        if self.num_graphs == 0 or self.kept in _UNCHANGED:
            return "the original runs" if self.num_graphs else "nothing has been compiled so far"
        if self.measured_before_ms is None or self.measured_after_ms is None:
            return f"{fewer}, not timed"
        spread = self.measured_spread or 0.0
        times = f"{self.measured_before_ms:.3f} -> {self.measured_after_ms:.3f} ms {self.timed_part}"
        if abs(self.speedup - 1) <= spread:
            return f"{fewer}, as fast as the original within the spread of {spread:.0%} ({times}){self._busy}"
        return f"{self.speedup:.2f}x as fast ({times}, spread {spread:.0%}), {fewer}{self._busy}"

    @property
    def timed_part(self) -> str:
        """What the measured times cover, in words: if a call was cut, the rest of it was not timed."""
        return "in the graphs alone" if self.cut else "a call"

    @property
    def _held(self) -> str:
        """Memory held for weights."""
        assert self.weight_bytes is not None, "asked for where it is known"
        packed = "" if self.packed_bytes is None else f", {self.packed_bytes / 1e6:.1f} MB made of them"
        files = f", {self.released_bytes / 1e6:.1f} MB of the weights in files" if self.released_bytes else ""
        return f"{self.weight_bytes / 1e6:.1f} MB of weights{packed}{files}"

    @property
    def _busy(self) -> str:
        if self.measured_is_bound:
            return "; at the least, waits for processors are subtracted"
        return "" if self.measured_is_calm else "; the machine was busy"

    def step_groups(self) -> list[StepGroup]:
        """The steps grouped by meaning."""
        return grouped(self.steps)

    def step_counts(self) -> dict[str, int]:
        """How often each substitution was applied, the most frequent first."""
        return dict(Counter(step.substitution for step in self.steps).most_common())


def _merged_status(each: Sequence[Status]) -> Status:
    """Merge the current status of several graphs."""
    return Status(
        kept=next((kept for kept in _PRECEDENCE if any(one.kept == kept for one in each)), "original"),
        fallback_reason=_merged_reasons([one.fallback_reason for one in each if one.fallback_reason]),
        weight_sets=sum(one.weight_sets for one in each),
        checked_sets=sum(one.checked_sets for one in each),
        precision=_chained(one.precision for one in each),
        calibration="; ".join(one.calibration for one in each if one.calibration) or None,
        exact_since=next((one.exact_since for one in each if one.exact_since), None),
        by_size=[text for one in each for text in one.by_size],
        by_calls=_joined(one.by_calls for one in each) or None,
        candidates=[candidate for one in each for candidate in one.candidates],
        settled=_chained(one.settled for one in each),
        repro=next((one.repro for one in each if one.repro is not None), None),
    )


def _merged_reasons(each: Sequence[str]) -> str | None:
    """Join reasons. Those that differ in their numbers only are one, with its first numbers and its count."""
    causes: dict[str, list[str]] = {}
    for reason in each:
        causes.setdefault(re.sub(r"-?\d+(\.\d+)?", "", reason), []).append(reason)
    alike = [same[0] + (f" ({len(same)} graphs)" if len(same) > 1 else "") for same in causes.values()]
    return "; ".join(alike) or None


def _share(reports: Sequence[Report]) -> float | None:
    """Measured share of all the predicted time; None if no graph was priced."""
    priced = [(r.measured_share, r.cost_after_ms) for r in reports]
    parts = [(share, ms) for share, ms in priced if share is not None and ms is not None]
    total = sum(ms for _, ms in parts)
    return sum(share * ms for share, ms in parts) / total if total else None
