"""Messages that a limited process makes of a model, bounded and parsed like a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from torchrlopt.errors import ModelFormatError, UnsupportedError
from torchrlopt.limited import Limits, run_limited
from torchrlopt.onnx import wire
from torchrlopt.plain_text import escaped


def answer_of(
    child: Path,
    arguments: Sequence[str],
    data: bytes,
    limits: Limits,
    bytes_per_s: int,
    what: str,
    kind: Any = onnx.ModelProto,
) -> Any:
    """Return the message that a module answers.

    Args:
        child: the file of the module.
        arguments: for its `main`.
        data: for its `main`: a model without weights.
        limits: of the subprocess, for small models.
        bytes_per_s: of the data, by which larger models get more time.
        what: describes the task in error messages.
        kind: the type of the message.

    Raises:
        UnsupportedError: the subprocess died, exceeded a limit, or answered no such message.
    """
    limits = dataclasses.replace(limits, seconds=limits.seconds + len(data) / bytes_per_s)
    answer = run_limited(str(child), arguments, data, limits, what)
    found = kind()
    try:
        wire.check_size(answer, kind)
        found.ParseFromString(answer)
    except (DecodeError, ModelFormatError) as error:
        raise UnsupportedError(f"{what} failed", got=str(error)) from escaped(error)
    return found
