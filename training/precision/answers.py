"""Graphs in which every call has a type of its own, and a file of what was measured of them.

The *error* of an assignment is measured: the graph is run with it, call by call (`mixed_run`), and its
outputs are compared with those in float64. Its *time* is a sum of measured times: each kernel of the built
graph is timed in each type, and conversions between types count as in the search of `max_error`.
"""

from __future__ import annotations

import collections
import functools
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from torchrlopt.compile.contestant import Contestant, written
from torchrlopt.compile.mixed_precision import MixedPrecision
from torchrlopt.errors import EnvError
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.precision.retyped import CONTRACTIONS, LOW, lowerable
from torchrlopt.executors.weights.static_part import static_inputs
from torchrlopt.judge.budget import rms
from torchrlopt.judge.float64 import float64_reference
from torchrlopt.machine.profiling import Source
from torchrlopt.options import Options
from torchrlopt.precision.assignment import Assignment, Choice
from torchrlopt.precision.sensitivity import Sensitivities
from torchrlopt.precision.state import Times
from torchrlopt.precision.times import measured_times, work_us
from torchrlopt.torch_private.modes import without_dispatch_modes
from training.collectors.data_hash import data_hash
from training.precision.mixed_run import MixedRun

Array = np.ndarray[Any, Any]

RUNGS = ("float32", "bfloat16", "int8", "int8 in bfloat16")
"""Types that a call computes in. Bit 0 is the type of its operands and results, bit 1 says whether it
multiplies 8-bit integers."""

_LOW, _INTEGERS = 1, 2
_TIMINGS = 3
"""Repetitions of the timing, of which the least counts: other load can only add to a time."""

_FLUSHED = 500  # answers: a killed command loses no more, and small members of a gzip file compress badly
_PARTS = "result", "weight", "edge", "quantised"  # of sensitivities
_EDGE = ">"  # between the names of operand and call; neither contains it


class AnswerFile:
    """What was measured on one machine, as a table with the columns graph, kind, key and value.

    Kind "error" has the error of an assignment, whose key is the rung of each call. Other kinds have what is
    known of single calls: microseconds in a type, and what rounding adds to the squared error of the outputs.

    Args:
        path: of the gzipped CSV file, which is appended to; None keeps everything in memory.
        is_replay: whether what is missing is an error, instead of being measured.
    """

    def __init__(self, path: Path | None = None, is_replay: bool = False) -> None:
        self._path, self._is_replay = path, is_replay
        self._known: dict[str, dict[str, dict[str, float]]] = {}
        self._new: list[tuple[str, str, str, float]] = []
        if path is not None and path.is_file():
            frame = pd.read_csv(path, dtype={"key": str}, keep_default_na=False)
            for graph, kind, key, value in frame.itertuples(index=False):
                self.of(graph, kind)[key] = float(value)

    def of(self, graph: str, kind: str) -> dict[str, float]:
        """Everything of a kind that is known of a graph, by key."""
        return self._known.setdefault(graph, {}).setdefault(kind, {})

    def check_may_measure(self, graph: str, key: str) -> None:
        """Raise EnvError if the file is only replayed, so that nothing may be measured."""
        if self._is_replay:
            raise EnvError("an answer is not in the file that is replayed", where=graph, got=key)

    def add(self, graph: str, kind: str, values: Mapping[str, float]) -> None:
        """Enter what was measured, with as many digits as the file has."""
        rounded = {key: float(f"{value:.6g}") for key, value in values.items()}
        self.of(graph, kind).update(rounded)
        self._new += [(graph, kind, key, value) for key, value in rounded.items()]
        if len(self._new) >= _FLUSHED:
            self.flush()

    def flush(self) -> None:
        """Append what is new, as a whole member of the gzip file."""
        if self._path is not None and self._new:
            frame = pd.DataFrame(self._new, columns=["graph", "kind", "key", "value"])
            text = frame.to_csv(index=False, header=not self._path.exists())
            with self._path.open("ab") as file:
                file.write(gzip.compress(text.encode(), mtime=0))
        self._new = []


class MeasuredGraph:
    """A graph with N calls that may compute in lower precision; an assignment is a tuple of N rungs.

    Args:
        name: for people.
        source: the model.
        file: answers that are known.

    Attributes:
        name: as given.
        assignment: sensitivities and times of the calls, as `max_error` measures them.
        calls: [N], those that compute; calls that only move data follow them.
        lowerable: the same with those.
        legal: bool [N, 4], the rungs of each call.
        groups: of calls that can be changed at once: each operator, and all.
        float32_us: time of all calls in float32.
    """

    def __init__(self, name: str, source: Source, file: AnswerFile) -> None:
        job = source.job
        self.name, self._source, self._file = name, source, file
        self._label = f"{name} {data_hash([job.traced.content, list(source.inputs)])[:12]}"
        self._exact: Any = source.lower(job.program.graph, "eager")
        contestant = Contestant(job, job.traced.aten, lambda: source.inputs)
        self._mixed = MixedPrecision(contestant, job.program.graph, self._exact, Options())
        if not file.of(self._label, RUNGS[0]):
            self._measure()
        self.assignment = self._known()
        self.calls = self.assignment.items
        self.lowerable = self._mixed.calls
        self._at = {call.name: place for place, call in enumerate(self.calls)}
        values, times = self.assignment.values, self.assignment.values.times
        integers = np.asarray([call.name in times.quantised for call in self.calls])
        low_integers = integers & bool(file.of(self._label, RUNGS[3]))
        self.legal = np.stack([np.ones_like(integers), np.ones_like(integers), integers, low_integers], 1)
        columns = (times.high, times.low, times.quantised, times.quantised)
        self._us = np.asarray([[each.get(call.name, 0.0) for each in columns] for call in self.calls])
        sources = values.readers.items()
        self._own = np.asarray([self._at.get(source.name, -1) for source, _ in sources])
        self._reads = np.asarray([[call in readers for call in self.calls] for _, readers in sources], float)
        self._num_readers = np.asarray([len(readers) for _, readers in sources])
        self._conversion_us = np.asarray([values.conversion_us(source) for source, _ in sources])
        by_operator: dict[Any, list[int]] = collections.defaultdict(list)
        for place, call in enumerate(self.calls):
            by_operator[call.target].append(place)
        several = [each for each in by_operator.values() if len(each) > 1]
        self.groups = [*several, list(range(len(self.calls)))]
        self.float32_us = float(self.us(np.zeros((1, len(self.calls)), np.int8))[0])

    def error(self, rungs: Sequence[int]) -> float:
        """Relative error of the outputs, measured once for each assignment.

        Raises:
            EnvError: it is not known, and the file is only replayed.
        """
        key, known = "".join(map(str, rungs)), self._file.of(self._label, "error")
        if key not in known:
            self._file.check_may_measure(self._label, key)
            outputs = self._run(*self._names(rungs))
            self._file.add(self._label, "error", {key: rms(outputs, self._reference)})
        return known[key]

    def us(self, rungs: Array) -> Array:
        """Times [B] of assignments [B, N] in microseconds, the same as `Assignment` predicts one by one."""
        total = np.take_along_axis(self._us[None], rungs[:, :, None].astype(np.int64), 2).sum((1, 2))
        low = (rungs & _LOW).astype(bool)
        num_low = low @ self._reads.T  # of the readers of each value, [B, V]
        is_low = low[:, self._own] & (self._own >= 0)
        is_converted = np.where(is_low, num_low < self._num_readers, num_low > 0)
        found: Array = total + is_converted @ self._conversion_us
        return found

    def choice(self, rungs: Sequence[int]) -> Choice:
        """An assignment as the package has it."""
        return self.assignment.of(*self._names(rungs))

    def _names(self, rungs: Sequence[int]) -> tuple[set[str], set[str]]:
        """Calls in bfloat16, and those with integers."""
        pairs = list(zip(self.calls, rungs, strict=True))
        return {c.name for c, rung in pairs if rung & _LOW}, {c.name for c, rung in pairs if rung & _INTEGERS}

    def rungs(self, choice: Choice) -> tuple[int, ...]:
        """The inverse of `choice`. Without kernels for both, what is lowered multiplies no integers."""
        found = [
            _LOW * (call.name in choice.lowered) + _INTEGERS * (call.name in choice.quantised)
            for call in self.calls
        ]
        return tuple(rung if self.legal[place, rung] else _LOW for place, rung in enumerate(found))

    @functools.cached_property
    def features(self) -> Array:
        """What learned rows know of each call without a measurement of errors: float64 [N, F]."""
        us = np.log(np.maximum(self._us, 1e-3)) - np.log(self.float32_us)
        depth = np.arange(len(self.calls))[:, None] / len(self.calls)
        readers = [len(self.assignment.values.readers.get(call, ())) for call in self.calls]
        return np.concatenate([us, depth, np.asarray([
            [np.log(work_us(call)), call.target in CONTRACTIONS, "conv" in str(call.target),
             "softmax" in str(call.target) or "attention" in str(call.target), "norm" in str(call.target),
             np.log1p(count), len(call.all_input_nodes)]
            for call, count in zip(self.calls, readers, strict=True)
        ], np.float64)], 1)  # fmt: skip

    @functools.cached_property
    def sensitivities(self) -> Array:
        """Logarithms of the squared errors that two reverse passes predict: [N, 3], by rung but float32."""
        found = self.assignment.values.found
        edges: dict[str, float] = collections.defaultdict(float)
        for (_, reader), error in found.edges.items():
            edges[reader] += error
        low = np.asarray([found.results.get(call.name, 0.0) + found.weights.get(call.name, 0.0)
                          + edges[call.name] for call in self.calls])  # fmt: skip
        integers = np.asarray([found.quantised.get(call.name, 0.0) for call in self.calls])
        return np.log(np.stack([low, integers, low + integers], 1) + 1e-14)

    @functools.cached_property
    def _run(self) -> MixedRun:
        job, options = self._source.job, Options()
        with without_dispatch_modes():
            module = lower_captured(written(job.program.graph, job), job.captured)
        static = static_inputs(job.captured, options.lowering)
        return MixedRun(module, self._source.inputs, static, lowerable(module.graph, static))

    @functools.cached_property
    def _reference(self) -> tuple[Any, ...]:
        return float64_reference(self._source.job.traced.aten, self._source.inputs)

    def _measure(self) -> None:
        """Measure what is known of single calls: microseconds in `RUNGS`, and sensitivities."""
        self._file.check_may_measure(self._label, "the times of its calls")
        mixed = self._mixed
        found, names = mixed.assignment.values.found, [each.name for each in mixed.calls]
        # Not every machine that has kernels for both integers and bfloat16 has some that read bfloat16.
        in_low = indirect.has_int8(LOW)
        quantisable = [each.name for each in mixed.quantisable]
        integers = mixed.built(names if in_low else (), quantisable) if quantisable else None
        timings = [
            measured_times(
                mixed.calls, self._exact, mixed.whole, integers, mixed.quantisable, self._source.inputs
            )
            for _ in range(_TIMINGS)
        ]
        kinds = RUNGS[0], RUNGS[1], RUNGS[3 if in_low else 2]
        for kind, attribute in zip(kinds, ("high", "low", "quantised"), strict=True):
            tables = [getattr(each, attribute) for each in timings]
            least = {name: min(table[name] for table in tables) for name in tables[0]}
            self._file.add(self._label, kind, least)
        edges = {f"{operand}{_EDGE}{call}": error for (operand, call), error in found.edges.items()}
        for kind, values in zip(_PARTS, (found.results, found.weights, edges, found.quantised), strict=True):
            self._file.add(self._label, kind, values)
        self._file.flush()

    def _known(self) -> Assignment:
        high, low, integers, low_integers, result, weight, edge, quantised = (
            self._file.of(self._label, kind) for kind in (*RUNGS, *_PARTS)
        )
        edges = {(key.split(_EDGE)[0], key.split(_EDGE)[1]): value for key, value in edge.items()}
        found = Sensitivities(result, edges, weight, quantised)
        return Assignment(self._mixed.calls, found, Times(high, low, low_integers or integers))
