"""Times two model files in the runtime that will run them; part of a subprocess with limits."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from torchrlopt.errors import UnsupportedError
from torchrlopt.judge.policy import Policy
from torchrlopt.judge.timing import measure
from torchrlopt.report import Timing

Feeds = Mapping[str, NDArray[Any]]


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


def _onnxruntime(path: Path, feeds: Feeds) -> Callable[[], Any]:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # no threads that spin beside the other
    session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    own = {value.name: feeds[value.name] for value in session.get_inputs()}
    return lambda: session.run(None, own)


def _openvino(path: Path, feeds: Feeds) -> Callable[[], Any]:
    from torchrlopt.executors.onnx_runtimes.openvino_build import new_core

    properties = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = new_core().compile_model(str(path), "CPU", properties)
    request = compiled.create_infer_request()
    own = {each.get_any_name(): feeds[each.get_any_name()] for each in compiled.inputs}
    return lambda: request.infer(own)


RUNTIMES: Mapping[str, Callable[[Path, Feeds], Callable[[], Any]]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
"""Makes a call of a file, for each runtime that can time files."""
