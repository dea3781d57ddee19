"""Times two model files in the runtime that will run them; part of a subprocess with limits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.onnx_runtimes.file_calls import RUNTIMES, Feeds
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.timing import measure
from torchrlopt.report import Timing


def time_files(original: Path, written: Path, feeds: Feeds, runtime: str, policy: Policy) -> Timing | None:
    """Time a file against the one that it was made from.

    Args:
        original: the one.
        written: the other; it loads and runs where the first does.
        feeds: inputs by name.
        runtime: a key of `RUNTIMES`.
        policy: limits of the timing.

    Returns:
        The timing; None if the runtime is not installed, or does not run the original.

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
