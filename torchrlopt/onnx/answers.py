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
    """Return the message of a `kind` that a module answers to arguments and the data of a model.

    The limits are those for small models; one byte more for each `bytes_per_s` gives the subprocess a second.

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
