"""Builds TensorRT plans from ONNX models, and loads plans as engines with their weights.

Uses only the part of the Python API that TensorRT 10.13 and 11 share. Every TensorRT object is annotated with
its class: a test checks each name used against the published bindings.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Mapping
from typing import Any

import tensorrt as trt
import torch

from torchrlopt.errors import LoweringError
from torchrlopt.executors.tensorrt.engine import Engine, Log
from torchrlopt.executors.tensorrt.files import EngineFiles
from torchrlopt.executors.tensorrt.model import Prepared, Ranges, TensorRtOptions, zeros_for

logger = logging.getLogger("torchrlopt")

_NUM_MESSAGES = 8

Weights = Mapping[str, torch.Tensor]
"""Contiguous tensors in host memory, by initializer name."""


def version() -> str:
    """TensorRT's version."""
    return str(trt.__version__)


def parse(prepared: Prepared, device: torch.device) -> dict[str, str]:
    """The objections of TensorRT's parser to nodes of a model, by node name; see `model.Parse`.

    The parser checks all nodes and reports each one it rejects; `supports_model_v2` would report only the
    last one, and accepts no weights from memory. The weights are zeros here, because support depends on
    dtypes and sizes only.
    """
    with torch.cuda.device(device):
        log = Log()
        builder: trt.Builder = trt.Builder(log)
        network: trt.INetworkDefinition = builder.create_network(_network_flags())
        parser: trt.OnnxParser = trt.OnnxParser(network, log)
        zeros = zeros_for(prepared)
        if parser.load_model_proto(prepared.proto) and _give(parser, zeros) and parser.parse_model_proto():
            return {}
        found = {}
        for index in range(parser.num_errors):
            error: trt.ParserError = parser.get_error(index)
            found[str(error.node_name())] = f"{error.node_operator()}: {error.desc()}"
        return found


class _Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # a class of a package without types
    """Shows the phases of a build on a terminal, and cancels the build on request."""

    def __init__(self) -> None:
        trt.IProgressMonitor.__init__(self)
        self.is_cancelled = threading.Event()
        self._lock = threading.Lock()
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        if sys.stderr.isatty():
            from rich.progress import Progress

            from torchrlopt.console import Console

            self._bars = Progress(console=Console(stderr=True), transient=True)

    def __enter__(self) -> _Monitor:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """Called by TensorRT, from any of its threads."""
        logger.debug("TensorRT begins %s (%d steps)", phase_name, num_steps)
        if self._bars is not None:
            with self._lock:
                self._tasks[phase_name] = self._bars.add_task(phase_name, total=num_steps)

    def step_complete(self, phase_name: str, step: int) -> bool:
        """Returning False makes TensorRT cancel the build."""
        if self._bars is not None:
            with self._lock:
                if phase_name in self._tasks:
                    self._bars.update(self._tasks[phase_name], completed=step)
        return not self.is_cancelled.is_set()

    def phase_finish(self, phase_name: str) -> None:
        """Called by TensorRT, from any of its threads."""
        if self._bars is not None:
            with self._lock:
                task = self._tasks.pop(phase_name, None)
                if task is not None:
                    self._bars.remove_task(task)


class EngineMaker:
    """Makes engines of one model for any set of weights.

    With `refit`, one plan without weights serves all sets: it is built once, kept on disk, and every engine
    made from it is refitted with its weights. Otherwise a plan contains one set of weights and is built for
    each set, so TensorRT can optimise for their values.

    Args:
        prepared: the model.
        options: the user's.
        files: where plans and timings are stored; None: nowhere.
        device: of the tensors.

    Attributes:
        num_builds: number of networks that TensorRT has optimised.
    """

    def __init__(
        self,
        prepared: Prepared,
        options: TensorRtOptions,
        files: EngineFiles | None,
        device: torch.device,
    ) -> None:
        self._prepared = prepared
        self._options = options
        self._files = files
        self._device = device
        self._log = Log()
        self._plan: bytes | None = None
        self._refits = options.refit and bool(prepared.prologue.names)
        self.num_builds = 0

    def engine(self, weights: Weights) -> Engine:
        """An engine with these weights.

        Raises:
            LoweringError: TensorRT rejects the model.
            KeyboardInterrupt: the user cancelled the build.
        """
        with torch.cuda.device(self._device):
            key = self._key(weights)
            plan = self._plan
            if plan is None and self._files is not None:
                plan = self._files.read(key)
            engine = self._loaded(plan, weights) if plan is not None else None
            if engine is None:  # none yet, or it is damaged or from another TensorRT version
                plan = self._built(weights)
                engine = self._loaded(plan, weights)
                if self._files is not None and engine is not None:
                    self._files.write(key, plan)
            if engine is None and self._refits:
                # Not every layer supports refitting; in that case each set of weights gets its own plan.
                logger.info("TensorRT cannot refit this engine: %s", "; ".join(self._log.messages))
                self._refits = False
                return self.engine(weights)
            if engine is None:
                raise self._log.error("TensorRT cannot load the engine that it has built")
            if self._refits:
                self._plan = plan
            return Engine(engine, self._prepared, self._log, self._device)

    def _key(self, weights: Weights) -> str:
        """SHA-256 of everything that a plan depends on."""
        parts = [version(), torch.cuda.get_device_name(), str(torch.cuda.get_device_capability())]
        parts += [torch.version.cuda or "", repr(self._options), repr(self._prepared.ranges)]
        parts.append(str(self._refits))
        parts.append(str(self._prepared.tf32))
        digest = hashlib.sha256("\n".join(parts).encode() + self._prepared.proto)
        if not self._refits:
            for name in sorted(weights):
                digest.update(name.encode())
                digest.update(weights[name].reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    # ---- building

    def _built(self, weights: Weights) -> bytes:
        """The serialised plan."""
        self._log.messages.clear()
        self.num_builds += 1
        builder: trt.Builder = trt.Builder(self._log)
        network: trt.INetworkDefinition = builder.create_network(_network_flags())
        parser: trt.OnnxParser = trt.OnnxParser(network, self._log)
        if not parser.load_model_proto(self._prepared.proto):
            raise self._refusal(parser)
        if not _give(parser, weights):
            raise self._refusal(parser)
        if not parser.parse_model_proto():
            raise self._refusal(parser)
        config: trt.IBuilderConfig = builder.create_builder_config()
        if self._options.workspace_bytes is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, self._options.workspace_bytes)
        if self._options.optimization_level is not None:
            config.builder_optimization_level = self._options.optimization_level
        if not self._prepared.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        if self._refits:
            config.set_flag(trt.BuilderFlag.REFIT)
            config.set_flag(trt.BuilderFlag.STRIP_PLAN)
        if self._prepared.ranges:
            profile: trt.IOptimizationProfile = builder.create_optimization_profile()
            _set_ranges(profile, network, self._prepared.ranges)
            config.add_optimization_profile(profile)
        timings = self._files.timings(version()) if self._files is not None else b""
        cache: trt.ITimingCache = config.create_timing_cache(timings)
        # Skip timings from another device instead of failing.
        config.set_timing_cache(cache, ignore_mismatch=False)
        plan = self._run_build(builder, network, config)
        if plan is None:
            raise self._log.error("TensorRT cannot build the network")
        if self._files is not None:
            measured: trt.ITimingCache = config.get_timing_cache()
            self._files.keep_timings(version(), bytes(measured.serialize()))
        return plan

    def _run_build(
        self, builder: trt.Builder, network: trt.INetworkDefinition, config: trt.IBuilderConfig
    ) -> bytes | None:
        """Build in a separate thread, so that Ctrl-C is noticed while TensorRT is busy."""
        found: list[bytes | None] = []
        raised: list[BaseException] = []

        def build() -> None:
            try:
                with torch.cuda.device(self._device):
                    plan = builder.build_serialized_network(network, config)
                    found.append(None if plan is None else bytes(plan))
            except BaseException as error:  # noqa: BLE001  # re-raised in the waiting thread
                raised.append(error)

        monitor: _Monitor
        with _Monitor() as monitor:
            config.progress_monitor = monitor
            thread = threading.Thread(target=build, name="torchrlopt-tensorrt-build")
            thread.start()
            try:
                while thread.is_alive():
                    thread.join(0.1)
            except BaseException:
                monitor.is_cancelled.set()
                thread.join()
                raise
        if raised:
            raise raised[0]
        return found[0]

    def _refusal(self, parser: trt.OnnxParser) -> LoweringError:
        """The parser's objections to the model."""
        reasons = []
        for index in range(min(parser.num_errors, _NUM_MESSAGES)):
            error: trt.ParserError = parser.get_error(index)
            reasons.append(f"{error.node_operator()} {error.node_name()}: {error.desc()}")
        if not reasons:
            return self._log.error("TensorRT's parser refuses the model")
        return LoweringError("TensorRT's parser refuses the model", got="; ".join(reasons), is_bug=False)

    # ---- loading

    def _loaded(self, plan: bytes, weights: Weights) -> trt.ICudaEngine | None:
        """The engine of a plan, with weights; None if the plan is not usable."""
        runtime: trt.Runtime = trt.Runtime(self._log)
        engine: trt.ICudaEngine | None = runtime.deserialize_cuda_engine(plan)
        if engine is None or not self._refits:
            return engine
        refitter: trt.Refitter = trt.Refitter(engine, self._log)
        parser: trt.OnnxParserRefitter = trt.OnnxParserRefitter(refitter, self._log)
        is_refitted = (
            parser.load_model_proto(self._prepared.proto)
            and _give(parser, weights)
            and parser.refit_model_proto()
            and refitter.refit_cuda_engine()
        )
        return engine if is_refitted else None


def _give(parser: trt.OnnxParser | trt.OnnxParserRefitter, weights: Weights) -> bool:
    """Pass weights to a parser; empty ones are already in the model."""
    return all(
        parser.load_initializer(name, tensor.data_ptr(), tensor.numel() * tensor.element_size())
        for name, tensor in weights.items()
        if tensor.numel() > 0
    )


def _network_flags() -> int:
    """Flags of a strongly typed network, the only kind from TensorRT 11 on."""
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def _set_ranges(profile: trt.IOptimizationProfile, network: trt.INetworkDefinition, ranges: Ranges) -> None:
    """Set the size ranges in the profile."""
    for index in range(network.num_inputs):
        tensor: trt.ITensor = network.get_input(index)
        found = ranges.get(tensor.name)
        if found is None:
            continue
        if found.is_value and tensor.is_shape_tensor:
            profile.set_shape_input(tensor.name, list(found.least), list(found.best), list(found.most))
        elif not found.is_value:
            profile.set_shape(tensor.name, found.least, found.best, found.most)
