"""Checks whether the models of two files compute the same, in a subprocess with limits.

The files are untrusted: whatever running them does is confined to that process. Operators without a converter
are not run: the rest is checked around them (`executors/lowering/around.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
from numpy.typing import NDArray
from onnx_ir.passes import common

from torchrlopt import errors
from torchrlopt.capture.footprint import MAX_BYTES, check_footprint
from torchrlopt.errors import RlOptError, UnsupportedError, VerificationError
from torchrlopt.executors.lowering.around import Around, lower_pair
from torchrlopt.executors.lowering.file_inputs import NUM_ATTEMPTS, drawn
from torchrlopt.executors.onnx_runtimes.file_calls import RUNTIMES, Feeds
from torchrlopt.executors.onnx_runtimes.file_trial import try_file
from torchrlopt.judge import right
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.stored import timing_from
from torchrlopt.judge.timing import measure
from torchrlopt.limited import Limits, run_limited
from torchrlopt.onnx import files, safety
from torchrlopt.onnx.weightless import put_weights_back
from torchrlopt.report import Timing
from torchrlopt.storage.checked_json import parsed

LIMITS = Limits(seconds=600.0, memory_bytes=3 * MAX_BYTES)
"""Of the check, beyond the memory of the weights: two graphs and the reference run one after the other."""

_COPIES = 8  # of the weights: each file as bytes, as a message, as the checker's message and as tensors

_KINDS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, RlOptError)
}
_DETAILS = ("where", "expected", "got", "todo")


@dataclasses.dataclass(frozen=True)
class FileCheck:
    """A check that was passed.

    Attributes:
        error: see `Report.numerical_error`; None if nothing was compared.
        around: operators that were not run, each once; their inputs were compared.
        timing: of both files in the runtime; None if they were not timed.
    """

    error: float | None
    around: tuple[str, ...]
    timing: Timing | None = None


def check_apart(
    path_in: Path,
    path_out: Path,
    seed: int,
    weight_bytes: int,
    converted: bytes = b"",
    verify: bool = True,
    runtime: str | None = None,
    policy: Policy | None = None,
) -> FileCheck:
    """Run `check_files` in a subprocess with `LIMITS`.

    Raises:
        UnsupportedError: the check cannot be made, or exceeded its limits, or the result does not load.
        VerificationError: the second model computes something else.
        RlOptError: a stage of the check failed.
    """
    memory_bytes = LIMITS.memory_bytes + _COPIES * weight_bytes
    limits = dataclasses.replace(LIMITS, memory_bytes=memory_bytes)
    settings: dict[str, Any] = {"seed": seed, "verify": verify, "runtime": runtime}
    settings |= {} if policy is None else {"limit_ms": policy.limit_ms, "min_gain": policy.min_gain}
    arguments = (str(path_in.absolute()), str(path_out.absolute()), json.dumps(settings))
    answer = parsed(run_limited(__name__, arguments, converted, limits, "the check"))
    match answer:
        case {"refused": str(name), "what": str(what), **details} if name in _KINDS:
            given: dict[str, Any] = {key: str(details[key]) for key in _DETAILS if details.get(key)}
            raise _KINDS[name](what, **given)
        case {"error": float() | int() | None as error, "around": [*names], "timing": timing} if all(
            isinstance(n, str) for n in names
        ):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                return FileCheck(error, tuple(names), timing_from(timing))
    raise UnsupportedError("the check gave no answer that makes sense", got=str(answer)[:200])


def check_files(
    path_in: Path,
    path_out: Path,
    seed: int,
    converted: bytes = b"",
    verify: bool = True,
    runtime: str | None = None,
    policy: Policy | None = None,
) -> FileCheck:
    """Load two models, one made from the other, and compare them.

    They are compared on random inputs, in the eager executor and against float64. If ONNX Runtime is
    installed and loads and runs the first, it must load and run the second too.

    Args:
        path_in: the original.
        path_out: the rewritten model; nodes that were not rewritten keep their names.
        seed: of the inputs.
        converted: what the original was converted to before it was planned, without large weights; empty if
            it was planned as it is.
        verify: whether to compare them; otherwise they are only loaded.
        runtime: that times them, see `file_calls.RUNTIMES`; None, or not installed: they are not timed.
        policy: limits of the timing.

    Raises:
        UnsupportedError: they are too large, the original cannot be run on such inputs, or the second model
            does not load or run where the first does.
        LoweringError: an operator that would have to run has no converter.
        VerificationError: the second model computes something else.
    """
    if not verify:
        try_file(path_in, path_out, None)
        return FileCheck(None, ())
    source, rewritten = _as_planned(path_in, converted), files.load(path_out)
    common.RemoveUnusedNodesPass()(source)  # an operator without a converter may be gone if nothing reads it
    before, after = lower_pair(source, rewritten)
    if before.passed != after.passed:
        raise VerificationError(
            "operators are given other values", expected=before.passed[:8], got=after.passed[:8]
        )
    for module in (before.module, after.module):
        check_footprint(module, "the check")
    standard, inputs = _inputs(before, seed)
    error = right.verify_against(standard, _plain(after.module), inputs).worst
    given = zip(before.arguments, inputs, strict=True)
    feeds = {str(value.name): _array(x) for (value, _), x in given if value.is_graph_input()}
    known = {name: array for name, array in feeds.items() if array is not None}
    is_known = len(known) == len(feeds)
    try_file(path_in, path_out, known if is_known else None, compares=bool(converted))
    timing = None
    if runtime is not None and policy is not None and is_known:
        timing = _timed(path_in, path_out, known, runtime, policy)
    names = {str(node.name): f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in source.graph}
    return FileCheck(error, tuple(dict.fromkeys(names[name] for name in before.cut)), timing)


def _timed(original: Path, written: Path, feeds: Feeds, runtime: str, policy: Policy) -> Timing | None:
    """Time a file against the one that it was made from; None if the runtime does not run the original.

    Raises:
        UnsupportedError: the runtime runs the original, but not the other.
    """
    if importlib.util.find_spec(runtime) is None:
        return None
    try:
        before = RUNTIMES[runtime](original, feeds)
        before()
    except Exception:  # noqa: BLE001 - its errors have no common base
        return None
    try:
        after = RUNTIMES[runtime](written, feeds)
        after()
    except Exception as error:
        raise UnsupportedError(f"{runtime} runs the original, but not the result", got=str(error)) from error
    return measure(before, after, lambda: (), policy.limit_ms, policy.min_gain)


def _as_planned(path: Path, converted: bytes) -> onnx_ir.Model:
    """Return the original, or its converted form."""
    proto = safety.parse(path)
    if not converted:
        return files.prepared(proto, path)
    other = onnx.ModelProto.FromString(converted)
    put_weights_back(other, proto)
    safety.check(other, path)
    return files.made_of(other, path)


def _inputs(before: Around, seed: int) -> tuple[right.Standard, list[torch.Tensor]]:
    """Return inputs that the original can be run on, and its results for them."""
    refusals: list[UnsupportedError] = []
    for attempt in range(NUM_ATTEMPTS):
        inputs = drawn(before.arguments, seed, attempt)
        try:
            return right.standard(before.module, _plain(before.module), inputs), inputs
        except UnsupportedError as error:
            refusals.append(error)
    raise refusals[0]


def _array(x: torch.Tensor) -> NDArray[Any] | None:
    """Convert for ONNX Runtime; None for a type that numpy does not have."""
    try:
        return np.asarray(x.numpy())
    except TypeError:
        return None


def _plain(module: torch.fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """Wrap the module so that results share no memory and are contiguous: files specify neither."""

    def run(*inputs: Any) -> list[Any]:
        return [result.clone(memory_format=torch.contiguous_format) for result in module(*inputs)]

    return run


def main(data: bytes, arguments: Sequence[str]) -> bytes:
    """Entry point of the subprocess: run `check_files` and return its verdict as JSON."""
    path_in, path_out, given = arguments
    settings = json.loads(given)
    policy = Policy(settings.pop("min_gain"), settings.pop("limit_ms")) if "min_gain" in settings else None
    try:
        found = check_files(Path(path_in), Path(path_out), converted=data, policy=policy, **settings)
        verdict = dataclasses.asdict(found)
    except RlOptError as error:
        verdict = {"refused": type(error).__name__, "what": error.what}
        verdict |= {each: None if (part := getattr(error, each)) is None else str(part) for each in _DETAILS}
    return json.dumps(verdict).encode()
