"""Optimisers of ONNX files, and the process that runs one of them and times its result.

`FileCase` is a contestant of `baselines.shared.rounds`.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from torchrlopt.executors.onnx_runtimes.file_calls import RUNTIMES
from torchrlopt.onnx.subgraphs import nested

ORIGINAL, OURS = "original", "torchrlopt"
_REST_S = 0.05  # threads of the previous process may spin for some milliseconds
_MIN_CALLS = 3  # of a round, however long they take


def _slim(source: Path, target: Path, runtime: str) -> str:
    import onnxslim

    onnxslim.slim(str(source), str(target))
    return ""


def _sim(source: Path, target: Path, runtime: str) -> str:
    import onnxsim

    model, is_right = onnxsim.simplify(str(source))
    onnx.save(model, target)
    return "" if is_right else "its own check failed"


def _onnxruntime(source: Path, target: Path, runtime: str) -> str:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # The level beyond is for the machine that it ran on.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return ""


def _torchrlopt(source: Path, target: Path, runtime: str) -> str:
    import torchrlopt

    report = torchrlopt.optimise_onnx(source, target, executor=runtime, cache=False)
    return f"{report.kept}: {report.fallback_reason}" if report.kept == "original" else ""


TOOLS: dict[str, tuple[str, Callable[[Path, Path, str], str]]] = {
    OURS: ("torchrlopt", _torchrlopt),
    "onnxslim": ("onnxslim", _slim),
    "onnxsim": ("onnxsim", _sim),
    "onnxruntime": ("onnxruntime", _onnxruntime),
}
"""By name, the package that each needs, and what writes a file for a runtime and returns a note."""


def installed() -> list[str]:
    """The names of the tools whose packages are installed."""
    return [name for name, (package, _) in TOOLS.items() if importlib.util.find_spec(package)]


def num_nodes(proto: onnx.ModelProto) -> int:
    """Number of nodes that compute something, those in bodies and functions included."""
    bodies = [graph.node for graph in nested(proto.graph)] + [each.node for each in proto.functions]
    return sum(node.op_type != "Constant" for nodes in bodies for node in nodes)


class FileCase:
    """A file that a tool makes, and its calls in a runtime.

    Args:
        folder: for its outputs.
        tool: a key of `TOOLS`, or `ORIGINAL`.
        source: the file.
        target: what the tool makes of it, in a folder of its own.
        runtime: a key of `RUNTIMES`.
    """

    def __init__(self, folder: str, tool: str, source: str, target: str, runtime: str) -> None:
        self._folder, self._tool, self._runtime = Path(folder), tool, runtime
        self._source, self._target = Path(source), Path(target)

    def make(self) -> dict[str, float | str]:
        """Write the target; returns seconds, its nodes and bytes, and a note."""
        start, note = time.perf_counter(), ""
        if self._tool != ORIGINAL:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            note = TOOLS[self._tool][1](self._source, self._target, self._runtime)
        seconds = time.perf_counter() - start
        data = {self._target, *self._target.parent.glob("*")} if self._tool != ORIGINAL else {self._source}
        return {
            "seconds": seconds,
            "nodes": num_nodes(onnx.load(self._target, load_external_data=False)),
            "bytes": sum(path.stat().st_size for path in data),
            "note": note,
        }

    def open(self) -> str:
        """Load the target, run it once, and return the path of its outputs."""
        with np.load(self._source.with_suffix(".npz")) as feeds:
            self._call = RUNTIMES[self._runtime](self._target, dict(feeds))
        found = self._call()
        path = self._folder / "outputs.npz"
        np.savez(path, *(found if isinstance(found, list) else [*found.values()]))
        return str(path)

    def time(self, seconds: float) -> tuple[float, float]:
        """The least milliseconds of a call in a round, by the clock and of the processor."""
        time.sleep(_REST_S)
        self._call()
        spent = []
        end = time.perf_counter() + seconds
        while len(spent) < _MIN_CALLS or time.perf_counter() < end:
            start, processor = time.perf_counter(), time.process_time()
            self._call()
            spent.append((time.perf_counter() - start, time.process_time() - processor))
        wall, processor = (min(each) * 1e3 for each in zip(*spent, strict=True))
        return wall, processor
