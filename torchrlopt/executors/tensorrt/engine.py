"""Runs a TensorRT engine on torch tensors, on a separate stream.

Like `build`, uses only the part of the Python API that TensorRT 10.13 and 11 share. Every TensorRT object is
annotated with its class: a test checks each name used against the published bindings.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import tensorrt as trt
import torch

from torchrlopt.errors import LoweringError
from torchrlopt.executors.tensorrt.model import Prepared

logger = logging.getLogger("torchrlopt")

_NUM_MESSAGES = 8


class Log(trt.ILogger):  # type: ignore[misc]  # a class of a package without types
    """Keeps TensorRT's errors for our messages, and forwards warnings to our logger."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.messages: deque[str] = deque(maxlen=_NUM_MESSAGES)

    def log(self, severity: Any, msg: str) -> None:
        """Called by TensorRT, from any of its threads."""
        if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
            self.messages.append(msg)
        elif severity == trt.ILogger.Severity.WARNING:
            logger.debug("TensorRT: %s", msg)

    def error(self, what: str) -> LoweringError:
        """An error that includes TensorRT's messages."""
        return LoweringError(what, got="; ".join(self.messages) or "TensorRT gave no reason")


class _Allocator(trt.IOutputAllocator):  # type: ignore[misc]  # as above
    """Allocates torch memory for an output whose size TensorRT determines at run time."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        trt.IOutputAllocator.__init__(self)
        self._dtype = dtype
        self._device = device
        self._memory: torch.Tensor | None = None
        self._shape: tuple[int, ...] = ()

    def reallocate_output_async(
        self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
    ) -> int | None:
        """Called by TensorRT with the number of bytes it needs; returns None if they cannot be allocated."""
        try:
            # torch aligns to 512 bytes, TensorRT requires 256.
            self._memory = torch.empty(max(size, 1), dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:
            return None
        return self._memory.data_ptr()

    def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:
        """Called by TensorRT when the sizes are known."""
        self._shape = tuple(shape)

    def take(self) -> torch.Tensor:
        """The output of the call that has just been enqueued; the next call gets new memory."""
        numel = torch.Size(self._shape).numel()
        if self._memory is None or numel == 0:
            return torch.empty(self._shape, dtype=self._dtype, device=self._device)
        data, self._memory = self._memory, None
        return data[: numel * self._dtype.itemsize].view(self._dtype).view(self._shape)


class Engine:
    """An engine with its context and stream; calls from several threads are serialised.

    Args:
        engine: TensorRT's.
        prepared: the model it was built from.
        log: where the engine logs to.
        device: of the tensors.
    """

    def __init__(self, engine: trt.ICudaEngine, prepared: Prepared, log: Log, device: torch.device) -> None:
        self._engine: trt.ICudaEngine = engine
        self._context: trt.IExecutionContext = engine.create_execution_context()
        self._prepared = prepared
        self._log = log
        self._device = device
        self._lock = threading.Lock()
        self._stream = torch.cuda.Stream(device)
        self._on_host = {
            name for name in prepared.feeds if engine.get_tensor_location(name) == trt.TensorLocation.HOST
        }
        self._allocators: dict[str, _Allocator] = {}
        # An empty tensor has no address, but TensorRT requires one.
        self._spare = torch.empty(1, dtype=torch.uint8, device=device)
        self._nowhere = self._spare.data_ptr()

    def __call__(self, feeds: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run; torch's current stream waits for the results.

        Args:
            feeds: contiguous tensors in the order of `Prepared.feeds`.

        Raises:
            LoweringError: TensorRT cannot run the engine on them.
        """
        with self._lock, torch.cuda.device(self._device):
            current = torch.cuda.current_stream(self._device)
            context: trt.IExecutionContext = self._context
            # Sizes in host memory must stay alive while the engine runs, so keep them until the next call.
            self._held: list[torch.Tensor] = []
            for name, feed in zip(self._prepared.feeds, feeds, strict=True):
                tensor = feed.to("cpu" if name in self._on_host else self._device)
                self._held.append(tensor)
                if not context.set_input_shape(name, tuple(tensor.shape)):
                    raise self._log.error("TensorRT refuses the sizes of an input")
                context.set_tensor_address(name, tensor.data_ptr() or self._nowhere)
            context.infer_shapes()
            results = [self._output(name, dtype) for name, dtype in self._prepared.fetches.items()]
            # Each stream waits for the other through events, so memory allocated and freed on torch's stream
            # around this call is safe without being recorded on ours.
            self._stream.wait_stream(current)
            if not context.execute_async_v3(self._stream.cuda_stream):
                raise self._log.error("TensorRT cannot run the engine")
            current.wait_stream(self._stream)
            return [result() for result in results]

    def _output(self, name: str, dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """Prepare memory for an output; the returned function gives the tensor once the run is enqueued."""
        context: trt.IExecutionContext = self._context
        shape = tuple(context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            if name not in self._allocators:
                self._allocators[name] = _Allocator(dtype, self._device)
            context.set_output_allocator(name, self._allocators[name])
            return self._allocators[name].take
        result = torch.empty(shape, dtype=dtype, device=self._device)
        context.set_tensor_address(name, result.data_ptr() or self._nowhere)
        return lambda: result
