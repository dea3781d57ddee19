"""ONNX Runtime calls that run in the program, and before that in a separate process.

That process loads this file by path, so it imports only numpy and ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_LETTERS = 2000  # of an objection, which may list many operators
_CALLS = 2  # the second uses other code: memory is planned by what the first one needed
_BFLOAT16 = 16  # in ONNX


def session_of(proto: bytes, values: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Create a session.

    Args:
        proto: the model, with initializers whose data is elsewhere.
        values: an OrtValue for each of these.
        settings: "threads", "entries" of the configuration by name, "disabled" optimisers.
    """
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = settings["threads"]
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for name, value in settings["entries"].items():
        options.add_session_config_entry(name, value)
    options.add_external_initializers(list(values), list(values.values()))
    return InferenceSession(
        proto, options, providers=["CPUExecutionProvider"], disabled_optimizers=settings["disabled"]
    )


def probe(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Why ONNX Runtime rejects a model, as a task; see `operator_probe.Probe`."""
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        InferenceSession(arrays["model"].tobytes(), options, providers=["CPUExecutionProvider"])
    except MemoryError:  # unrelated to the operators
        raise
    except Exception as error:  # noqa: BLE001  # ONNX Runtime's errors have no common base
        return {"refusal": str(error).rpartition(" : ")[2][:_MOST_LETTERS]}
    return {"refusal": None}


def run(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Open a session and call it, as a task.

    Args:
        header: "settings" as for `session_of`; dtypes of the arrays under "held" and "feeds", by name.
        arrays: "model", and a "held NAME" or "feeds NAME" for each.
    """
    values = {
        kind: {name: _value(arrays[f"{kind} {name}"], dtype) for name, dtype in header[kind].items()}
        for kind in ("held", "feeds")
    }
    session = session_of(arrays["model"].tobytes(), values["held"], header["settings"])
    fetches = [each.name for each in session.get_outputs()]
    for _ in range(_CALLS):
        session.run_with_ort_values(fetches, values["feeds"])
    return {}


def _value(array: NDArray[Any], dtype: str) -> Any:
    """An OrtValue that shares memory; bfloat16, which numpy lacks, comes as integers."""
    from onnxruntime import OrtValue

    if dtype == "torch.bfloat16":
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)
    return OrtValue.ortvalue_from_numpy(array)
