"""Calls of model files in the runtime that will run them; part of a subprocess with limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]


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
"""For each runtime that can time files, what makes a call of one on inputs by name."""
