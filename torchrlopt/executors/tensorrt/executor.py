"""The TensorRT executor: runs the rewritten model as an engine for one GPU, built without its weights.

The network is strongly typed: every product runs in the model's dtype. Weights are passed by pointer; if one
changes, the engine is refitted or rebuilt. Sizes outside the range that an engine was built for run in eager
PyTorch, on the same rewritten graph. Needs the extra `tensorrt` and a CUDA device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir
import torch

from torchrlopt.errors import UnsupportedError
from torchrlopt.executors.eager.executor import EagerExecutor
from torchrlopt.executors.onnx_runtimes.fetched_outputs import FetchedOutputs
from torchrlopt.executors.onnx_runtimes.session_call import as_tensor, devices_of, positions
from torchrlopt.executors.registry import Lowered, Refusals
from torchrlopt.executors.tensorrt.files import EngineFiles
from torchrlopt.executors.tensorrt.model import Prepared, TensorRtOptions, prepare, refusals, refused_by
from torchrlopt.executors.weights.prologue_cache import PrologueCache
from torchrlopt.options import LoweringOptions
from torchrlopt.storage.directory import default_directory
from torchrlopt.torch_private.modes import without_dispatch_modes

if TYPE_CHECKING:
    from torchrlopt.capture.captured import Captured
    from torchrlopt.executors.tensorrt.build import EngineMaker


class TensorRtExecutor:
    """Runs a model as a TensorRT engine on a CUDA device."""

    name = "tensorrt"

    def refusals(self, model: onnx_ir.Model, captured: Captured, options: LoweringOptions) -> Refusals:
        """See `Executor.refusals`."""
        found = refusals(model)
        if found:
            return found  # the parser checks the parts between them later
        try:
            from torchrlopt.executors.tensorrt.build import parse

            device = _device(captured)
        except (ImportError, OSError, UnsupportedError):
            return {}  # `lower` raises it
        with without_dispatch_modes():
            return refused_by(lambda prepared: parse(prepared, device), model, captured, options, device)

    def lower(self, model: onnx_ir.Model, captured: Captured | None, options: LoweringOptions) -> Lowered:
        """Build the callable; see `Executor.lower`. The engine itself is built in the first call.

        Raises:
            LoweringError: an operator is not an ONNX operator, or TensorRT rejects the model.
            UnsupportedError: tensorrt is not installed, or the inputs are not on one CUDA device.
            OptionsError: `executor_options` contains something that TensorRT does not support.
        """
        if captured is None:
            raise UnsupportedError("the TensorRT executor runs captured graphs", todo="open the file itself")
        settings = TensorRtOptions.of(options)
        device = _device(captured)
        try:
            from torchrlopt.executors.tensorrt.build import EngineMaker
        except (ImportError, OSError) as error:  # not installed, or its libraries are missing
            raise UnsupportedError(
                "tensorrt cannot be imported", got=str(error), todo="pip install 'torchrlopt[tensorrt]'"
            ) from error
        with without_dispatch_modes():
            varies = any(isinstance(dim, str) for value in model.graph.inputs for dim in _dims(value))
            fallback = EagerExecutor().lower(model.clone(), captured, options) if varies else None
            prepared = prepare(model, captured, options, device, settings.max_factor)
            files = EngineFiles(default_directory() / "tensorrt") if options.cache else None
            maker = EngineMaker(prepared, settings, files, device)
            constants = {name: value.to(device) for name, value in captured.constants.items()}
            return TensorRtCallable(prepared, maker, captured, constants, options, fallback)


def _device(captured: Captured) -> torch.device:
    """The CUDA device of all tensors."""
    devices = devices_of(captured)
    if len(devices) != 1 or {device.type for device in devices} != {"cuda"}:
        raise UnsupportedError(
            "the TensorRT executor runs on one CUDA device", got=", ".join(sorted(map(str, devices)))
        )
    return devices.pop()


def _dims(value: onnx_ir.Value) -> list[Any]:
    return [] if value.shape is None else [dim if isinstance(dim, int) else str(dim) for dim in value.shape]


class TensorRtCallable:
    """A lowered graph: converts arguments to feeds, with one engine per set of weights.

    Args:
        prepared: the model.
        maker: makes the engines.
        captured: defines names and order of the arguments.
        constants: large constants of the graph, on its device.
        options: the user's options.
        fallback: runs sizes that the engine was not built for.

    Attributes:
        maker: see above.
        num_fallbacks: number of calls run by the fallback.
    """

    def __init__(
        self,
        prepared: Prepared,
        maker: EngineMaker,
        captured: Captured,
        constants: dict[str, torch.Tensor],
        options: LoweringOptions,
        fallback: Lowered | None,
    ) -> None:
        position = positions(captured)
        self.maker = maker
        self.num_fallbacks = 0
        self._prepared = prepared
        self._constants = constants
        self._weight_names = [name for name in prepared.weights if name in position]
        self._weights = [position[name] for name in self._weight_names]
        self._feeds = [position[name] for name in prepared.feeds]
        self._ranges = [(position[name], range_) for name, range_ in prepared.ranges.items()]
        self._outputs = FetchedOutputs(captured.aten, position)
        self._fallback = fallback
        self._cache = PrologueCache(self._engine, options.weights)

    @property
    def num_evaluations(self) -> int:
        """See `registry.Lowered`."""
        of_fallback = 0 if self._fallback is None else self._fallback.num_evaluations
        return self._cache.num_evaluations + of_fallback

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the captured graph, in its order."""
        if self._fallback is not None and not all(r.holds(args[at]) for at, r in self._ranges):
            self.num_fallbacks += 1
            return self._fallback(*args)
        (engine,) = self._cache.get([args[at] for at in self._weights])
        fetches = engine([as_tensor(args[at]) for at in self._feeds])
        return self._outputs(fetches, [args[at] for at in self._outputs.read])

    def _engine(self, *weights: torch.Tensor) -> tuple[Any]:
        """The engine for these weights."""
        given = dict(zip(self._weight_names, weights, strict=True)) | self._constants
        values = self._prepared.prologue(given)
        # TensorRT reads weights from host memory, in row-major order.
        return (self.maker.engine({name: value.cpu().contiguous() for name, value in values.items()}),)


EXECUTOR = TensorRtExecutor()
