"""Does the model in one file compute what the model in another does? Asked in a process with limits.

The files come from outside: whatever running them does, it does it to that process. Operators without a
converter are not run: the rest is checked around them (`executors/lowering/around.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir
import torch

from torchrlopt import errors
from torchrlopt.capture.footprint import MAX_BYTES, check_footprint
from torchrlopt.capture.sampling import generated_inputs
from torchrlopt.compile import check
from torchrlopt.errors import RlOptError, VerificationError
from torchrlopt.executors.lowering.around import cut_of, lower_around
from torchrlopt.onnx import files, safety
from torchrlopt.onnx.limited import Limits, run_limited
from torchrlopt.onnx.missing_types import read_with_types

LIMITS = Limits(seconds=600.0, memory_bytes=3 * MAX_BYTES)
"""For the check, beyond what the weights take: two graphs and the reference are run one after the other."""

_COPIES = 8  # of the weights: each file as bytes, as a message, as the checker's message and as tensors


@dataclasses.dataclass(frozen=True)
class FileCheck:
    """A check that was passed.

    Attributes:
        error: see `Report.numerical_error`.
        around: operators that were not run, each once; what they are given was compared.
    """

    error: float
    around: tuple[str, ...]


def check_apart(path_in: Path, path_out: Path, seed: int, weight_bytes: int) -> FileCheck:
    """`check_files` in a process of its own, with `LIMITS`.

    Args:
        path_in: see `check_files`.
        path_out: see `check_files`.
        seed: see `check_files`.
        weight_bytes: size of the first model's weights.

    Raises:
        UnsupportedError: the check cannot be made, or took too much.
        VerificationError: the second model computes something else.
        RlOptError: a stage of the check failed.
    """
    memory_bytes = LIMITS.memory_bytes + _COPIES * weight_bytes
    limits = dataclasses.replace(LIMITS, memory_bytes=memory_bytes)
    arguments = (str(path_in.absolute()), str(path_out.absolute()), str(seed))
    answer = json.loads(run_limited(__name__, arguments, b"", limits, "the check"))
    if "refused" in answer:
        kind: type[RlOptError] = getattr(errors, answer.pop("refused"))
        raise kind(answer.pop("what"), **answer)
    return FileCheck(answer["error"], tuple(answer["around"]))


def check_files(path_in: Path, path_out: Path, seed: int) -> FileCheck:
    """Compare two models on random inputs, in the eager executor and against float64.

    Args:
        path_in: the original.
        path_out: the rewritten model; nodes that were not rewritten have their names still.
        seed: of the inputs.

    Raises:
        UnsupportedError: they are too large, or the original cannot be run on such inputs.
        LoweringError: what would have to be run has no converter.
        VerificationError: the second model computes something else.
    """
    source, rewritten = _as_planned(path_in), files.load(path_out)
    cut = cut_of(source)
    before, after = lower_around(source, cut), lower_around(rewritten, cut)
    if before.passed != after.passed:
        raise VerificationError(
            "operators are given other values", expected=before.passed[:8], got=after.passed[:8]
        )
    for module in (before.module, after.module):
        check_footprint(module, "the check")
    inputs = generated_inputs(before.module, seed)
    error = check.verify(before.module, _plain(before.module), _plain(after.module), inputs).worst
    names = {str(node.name): f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in source.graph}
    return FileCheck(error, tuple(dict.fromkeys(names[name] for name in cut)))


def _as_planned(path: Path) -> onnx_ir.Model:
    """The original with the types that its plan was made with: what has none is cut out, and all after it."""
    proto = safety.parse(path)
    model = files.prepared(proto, path)
    read_with_types(proto, model)
    return model


def _plain(module: torch.fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """The module with results that share no memory and have the usual strides: files know of neither."""

    def run(*inputs: Any) -> list[Any]:
        return [result.clone(memory_format=torch.contiguous_format) for result in module(*inputs)]

    return run


def main(data: bytes, arguments: Sequence[str]) -> bytes:
    """In the limited process: `check_files`, its verdict as JSON.

    Args:
        data: none.
        arguments: both paths and the seed.
    """
    path_in, path_out, seed = arguments
    try:
        verdict = dataclasses.asdict(check_files(Path(path_in), Path(path_out), int(seed)))
    except RlOptError as error:
        verdict = {
            "refused": type(error).__name__,
            "what": error.what,
            "where": error.where,
            "todo": error.todo,
        }
        verdict |= {"expected": _text(error.expected), "got": _text(error.got)}
    return json.dumps(verdict).encode()


def _text(part: object) -> str | None:
    return None if part is None else str(part)
