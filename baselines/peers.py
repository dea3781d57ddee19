"""The peers of the comparison: eager PyTorch, inductor, frozen inductor, ONNX Runtime, OpenVINO, torchrlopt.

Each is used as its documentation tells a user to. A peer is made in a process of its own (see `worker`), and
torch is imported only by those that run on it, so that peak memory means something.
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

OURS = "torchrlopt"

#: Names of the peers, in the order of reports; the first is the base of every ratio.
PEERS: tuple[str, ...] = ("eager", "inductor", "inductor_freezing", "onnxruntime", "openvino", OURS)

# Peers that need a package which torchrlopt's own extras do not bring.
_OPTIONAL = {"openvino": "openvino"}

#: Data types that a comparison can run in.
DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """One peer on one model.

    Attributes:
        model: Name in `baselines.models.NAMES`.
        peer: One of `PEERS`.
        batch: Batch size of the inputs.
        dtype: One of `DTYPES`.
        threads: Threads of the peer's kernels.
        executor: torchrlopt's executor; empty for the others.
        searcher: torchrlopt's searcher; empty for the others.
        weights: torchrlopt's option of that name.
        device: "cpu", or "cuda" for a peer of `baselines.cuda_peers`.
    """

    model: str
    peer: str
    batch: int
    dtype: str
    threads: int
    executor: str = ""
    searcher: str = ""
    weights: str = "check"
    device: str = "cpu"

    @property
    def label(self) -> str:
        """The peer's name, for torchrlopt with what it was told to use."""
        parts = (self.peer, self.executor, "" if self.searcher == "agent" else self.searcher)
        return "/".join(part for part in parts if part)


class Peer(Protocol):
    """A model made ready by one peer."""

    def first_call(self) -> float:
        """Compiles and runs once; returns the seconds from the model in hand to its first result."""

    def kept(self) -> str:
        """What runs after the first call, where the peer had a choice; else empty."""

    def call(self) -> Any:
        """Runs the model once."""

    def call_ms(self) -> float:
        """Runs the model once; returns the milliseconds that took."""

    def outputs(self) -> list[np.ndarray]:
        """Runs once and returns the outputs, flat."""

    def reference_outputs(self) -> list[np.ndarray]:
        """The outputs of the unchanged model in float64; the peer must not be called afterwards."""


def wall_ms(call: Callable[[], Any]) -> float:
    """Milliseconds of one call on the wall clock."""
    before = time.perf_counter()
    call()
    return (time.perf_counter() - before) * 1e3


def build_case(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs in the dtype of the case."""
    import torch

    from baselines.models import build

    torch.set_num_threads(case.threads)
    model, inputs = build(case.model, case.batch)
    dtype = getattr(torch, case.dtype)
    return model.to(dtype), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def to_arrays(outputs: Any) -> list[np.ndarray]:
    """Flat numpy arrays of a tensor or a tuple of tensors; bfloat16, which numpy lacks, becomes float32."""
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return [(t.float() if str(t.dtype) == "torch.bfloat16" else t).cpu().numpy() for t in tensors]


class TorchPeer:
    """Eager PyTorch, or one of the backends of torch.compile."""

    def __init__(self, case: Case) -> None:
        import torch

        self._torch = torch
        self._case = case
        self._model, self._inputs = build_case(case)
        self._callable = self._model
        if case.peer == "inductor_freezing":
            import torch._inductor.config

            torch._inductor.config.freezing = True
        if case.peer != "eager":
            # Imports, and what a compiler prepares once on a machine (inductor: 10 s for a C++ header), are
            # no part of this model's first call.
            self._prepare()
            # Dynamo remembers the sizes it has seen, and would take this model's for dynamic ones.
            torch._dynamo.reset()

    def _prepare(self) -> None:
        self._torch.compile(self._torch.sin)(self._torch.ones(8))
        self._callable = self._torch.compile(self._model)

    def first_call(self) -> float:
        """Compiles and runs once; returns the seconds that took."""
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start

    def kept(self) -> str:
        """Nothing: there is no choice."""
        return ""

    def call(self) -> Any:
        """Runs the model once."""
        with self._torch.no_grad():
            return self._callable(*self._inputs)

    def call_ms(self) -> float:
        """Runs the model once; returns the milliseconds that took."""
        return wall_ms(self.call)

    def outputs(self) -> list[np.ndarray]:
        """Runs once and returns the outputs, flat."""
        return to_arrays(self.call())

    def reference_outputs(self) -> list[np.ndarray]:
        """Turns the model into float64 and returns the outputs."""
        self._callable = self._model = self._model.double()
        self._inputs = tuple(x.double() if x.is_floating_point() else x for x in self._inputs)
        return self.outputs()


class RlOptPeer(TorchPeer):
    """torchrlopt."""

    def _prepare(self) -> None:
        self._optimise(self._torch.nn.ReLU().eval(), (self._torch.ones(8),))

    def _optimise(self, model: Any, inputs: tuple[Any, ...]) -> Any:
        import torchrlopt

        case = self._case
        settings = {"executor": case.executor, "searcher": case.searcher, "weights": case.weights}
        return torchrlopt.optimise(model, inputs, on_error="raise", **settings)

    def first_call(self) -> float:
        """Optimises and runs once; returns the seconds that took."""
        start = time.perf_counter()
        self._callable = self._optimise(self._model, self._inputs)
        self.call()
        return time.perf_counter() - start

    def kept(self) -> str:
        """The executor that runs the model now, and the searcher where it is not the agent."""
        report = self._callable.report
        if report.kept == "original":
            return "original"
        return str(report.executor if report.searcher == "agent" else f"{report.executor}, {report.searcher}")


def _export(case: Case, folder: str) -> float:
    """Writes model.onnx and inputs.npz into the folder; returns the seconds that the export took."""
    import onnxscript  # noqa: F401  # imported before the clock starts, as the compilers of the others are
    import torch

    model, inputs = build_case(case)
    start = time.perf_counter()
    torch.onnx.export(model, inputs, Path(folder) / "model.onnx", dynamo=True, verbose=False)
    seconds = time.perf_counter() - start
    np.savez(Path(folder) / "inputs.npz", *(x.numpy() for x in inputs))
    return seconds


class ExportedPeer(abc.ABC):
    """A runtime on PyTorch's own export, which runs in a child: this process needs no torch.

    Attributes:
        rounds_itself: The runtime computes a float32 model in the precision that it is told.
    """

    rounds_itself = False

    def __init__(self, case: Case, folder: str) -> None:
        self._case = case
        self._folder = Path(folder)

    @abc.abstractmethod
    def _load(self) -> tuple[list[str], Callable[[dict[str, np.ndarray]], list[np.ndarray]]]:
        """Names of the inputs in order, and what runs the exported model."""

    def first_call(self) -> float:
        """Exports, loads and runs once; returns the seconds that took."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            case = replace(self._case, dtype="float32") if self.rounds_itself else self._case
            export_s = pool.submit(_export, case, str(self._folder)).result()
        importlib.import_module(self._case.peer)
        start = time.perf_counter()
        names, self._run = self._load()
        with np.load(self._folder / "inputs.npz") as arrays:
            self._feed = dict(zip(names, arrays.values(), strict=True))
        self.call()
        return export_s + time.perf_counter() - start

    def kept(self) -> str:
        """Nothing: there is no choice."""
        return ""

    def call(self) -> Any:
        """Runs the model once."""
        return self._run(self._feed)

    def call_ms(self) -> float:
        """Runs the model once; returns the milliseconds that took."""
        return wall_ms(self.call)

    def outputs(self) -> list[np.ndarray]:
        """Runs once and returns the outputs, flat."""
        return list(self.call())

    def reference_outputs(self) -> list[np.ndarray]:
        """Refuses: the reference is eager PyTorch's."""
        raise NotImplementedError("the float64 reference is eager PyTorch's: ask the peer 'eager'")


class OnnxRuntimePeer(ExportedPeer):
    """ONNX Runtime with its defaults."""

    def _load(self) -> tuple[list[str], Callable[[dict[str, np.ndarray]], list[np.ndarray]]]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._case.threads
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(self._folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        return [value.name for value in session.get_inputs()], lambda feed: session.run(None, feed)


class OpenVinoPeer(ExportedPeer):
    """OpenVINO for the latency of one request, in the precision of the model."""

    rounds_itself = True

    def _load(self) -> tuple[list[str], Callable[[dict[str, np.ndarray]], list[np.ndarray]]]:
        import openvino

        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": self._case.threads,
            # Its default on some processors is to round float32 models to bfloat16.
            "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[
                self._case.dtype
            ],
        }
        compiled = openvino.Core().compile_model(self._folder / "model.onnx", "CPU", settings)
        names = [value.any_name for value in compiled.inputs]
        return names, lambda feed: list(compiled(feed).to_tuple())


def make_peer(case: Case, folder: str) -> Peer:
    """Makes the peer of a case; nothing is compiled yet.

    Args:
        case: What to make.
        folder: An empty folder for the peer's files.

    Raises:
        ValueError: There is no such peer.
    """
    if case.device == "cuda":
        from baselines.cuda_peers import CudaPeer

        return CudaPeer(case)
    if case.peer not in PEERS:
        raise ValueError(f"no peer named {case.peer!r}; choose one of: {', '.join(PEERS)}")
    if case.peer == "onnxruntime":
        return OnnxRuntimePeer(case, folder)
    if case.peer == "openvino":
        return OpenVinoPeer(case, folder)
    return RlOptPeer(case) if case.peer == OURS else TorchPeer(case)


def installed_peers() -> tuple[str, ...]:
    """The peers that can run here: those whose optional packages are installed."""
    return tuple(
        peer
        for peer in PEERS
        if peer not in _OPTIONAL or importlib.util.find_spec(_OPTIONAL[peer]) is not None
    )
