"""Runtimes that load an ONNX file.

Their process does not import torch: the export runs in a child, so that peak memory is the runtime's.
"""

from __future__ import annotations

import abc
import importlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from baselines.peers.case import Case
from baselines.peers.peer import Peer
from baselines.shared.arrays import load_calls, save_calls


def _export(case: Case, folder: str) -> float:
    """Write model.onnx and its inputs into the folder; returns the seconds that the export took."""
    import onnxscript  # noqa: F401  # imported before the clock starts, like the compilers of the others
    import torch

    from baselines.peers.pytorch import build_case, calibration

    model, inputs = build_case(case)
    start = time.perf_counter()
    torch.onnx.export(model, inputs, Path(folder) / "model.onnx", dynamo=True, verbose=False)
    seconds = time.perf_counter() - start
    calls = calibration(case) if case.peer == "openvino_int8" else [inputs]
    save_calls(Path(folder) / "inputs.npz", [[x.numpy() for x in call] for call in calls])
    return seconds


class ExportedPeer(Peer):
    """A runtime on PyTorch's own export, which runs in a child: this process needs no torch.

    Attributes:
        package: The runtime's package, imported before the clock starts.
        rounds_itself: Whether the runtime converts a float32 model to the requested precision.
    """

    package: str
    rounds_itself = False

    def __init__(self, case: Case, folder: str) -> None:
        self._case = case
        self._folder = Path(folder)

    @abc.abstractmethod
    def _load(self) -> tuple[list[str], Callable[[dict[str, np.ndarray]], list[np.ndarray]]]:
        """Names of the inputs in order, and a function that runs the exported model."""

    def first_call(self) -> float:
        """Export, load and run once; returns the seconds that it took."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            case = replace(self._case, dtype="float32") if self.rounds_itself else self._case
            export_s = pool.submit(_export, case, str(self._folder)).result()
        importlib.import_module(self.package)
        start = time.perf_counter()
        self._calls = load_calls(self._folder / "inputs.npz")
        self._names, self._run = self._load()
        self._feed = dict(zip(self._names, self._calls[0], strict=True))
        self.call()
        return export_s + time.perf_counter() - start

    def call(self) -> Any:
        """Run the model once."""
        return self._run(self._feed)

    def outputs(self) -> list[np.ndarray]:
        """Run once and return the outputs, flat."""
        return list(self.call())

    def answer(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once on other inputs of the same shapes and return the outputs, flat."""
        return list(self._run(dict(zip(self._names, inputs, strict=True))))


class OnnxRuntimePeer(ExportedPeer):
    """ONNX Runtime with its defaults, or with its dynamic quantisation to int8."""

    package = "onnxruntime"

    def _load(self) -> tuple[list[str], Callable[[dict[str, np.ndarray]], list[np.ndarray]]]:
        import onnxruntime

        path = self._folder / "model.onnx"
        if self._case.is_rounded:
            import onnx
            from onnxruntime.quantization import QuantType, quantize_dynamic

            model = onnx.load(path)
            # Its inference of shapes contradicts what the exporter noted for transposed weights.
            del model.graph.value_info[:]
            # Its convolutions take weights of type uint8 only.
            quantize_dynamic(model, path := self._folder / "int8.onnx", weight_type=QuantType.QUInt8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._case.threads
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return [value.name for value in session.get_inputs()], lambda feed: session.run(None, feed)


class OpenVinoPeer(ExportedPeer):
    """OpenVINO with the latency hint: in the precision of the model, of its own choice, or in int8."""

    package = "openvino"
    rounds_itself = True

    def _load(self) -> tuple[list[str], Callable[[dict[str, np.ndarray]], list[np.ndarray]]]:
        import openvino

        callers = self._case.callers
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": self._case.threads * callers,
        }
        if not self._case.is_rounded:
            # On some processors its default is to round float32 models to bfloat16.
            precisions = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
            settings["INFERENCE_PRECISION_HINT"] = precisions[self._case.dtype]
        if callers > 1:
            settings |= {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": callers}
        core = openvino.Core()
        model = core.read_model(self._folder / "model.onnx")
        if self._case.peer == "openvino_int8":
            model = self._quantised(model)
        self._compiled = compiled = core.compile_model(model, "CPU", settings)
        names = [value.any_name for value in compiled.inputs]
        return names, lambda feed: list(compiled(feed).to_tuple())

    def _quantised(self, model: Any) -> Any:
        """The model by NNCF's post-training quantisation, as for transformers if it has attention."""
        import nncf

        operators = [operator.get_type_name() for operator in model.get_ops()]
        has_attention = operators.count("Softmax") > 1 or "ScaledDotProductAttention" in operators
        return nncf.quantize(
            model,
            nncf.Dataset(self._calls),
            subset_size=len(self._calls),
            model_type=nncf.ModelType.TRANSFORMER if has_attention else None,
        )

    def caller(self) -> Callable[[], Any]:
        """A function that runs the model once; a request serves one thread."""
        request = self._compiled.create_infer_request()
        return lambda: list(request.infer(self._feed).to_tuple())
