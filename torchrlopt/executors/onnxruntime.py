"""The ONNX Runtime executor: the rewritten model in a session, tensors shared without copies.

The weights become initializers by pointer, so that ONNX Runtime folds and packs them; a session belongs to
one set of weights and is made anew when one changes (with live weights they stay inputs). Needs the extra
`onnxruntime`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.dlpack import from_dlpack

from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.executors import Lowered
from torchrlopt.executors.onnx_calls import (
    Outputs,
    as_tensor,
    devices_of,
    positions,
    proto_without_weights,
    refuse_opaque,
)
from torchrlopt.executors.prologue_cache import PrologueCache
from torchrlopt.onnx_standard import standardise
from torchrlopt.options import Options

if TYPE_CHECKING:
    from torchrlopt.capture import Captured

_Session = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


class OnnxRuntimeExecutor:
    """Runs a model in an ONNX Runtime session on the CPU."""

    name = "onnxruntime"

    def lower(self, model: onnx_ir.Model, captured: Captured | None, options: Options) -> Lowered:
        """Build the callable; see `Executor.lower`.

        Raises:
            LoweringError: an operator is not ONNX's, or ONNX Runtime refuses the model.
            UnsupportedError: onnxruntime is not installed, the inputs are not on the CPU, or an output is no
                tensor.
        """
        if captured is None:
            raise UnsupportedError(
                "the ONNX Runtime executor runs captured graphs", todo="open the file itself"
            )
        _check(model, captured)
        standardise(model)
        with _disable_current_modes():
            return _Callable(model, captured, options)


def _check(model: onnx_ir.Model, captured: Captured) -> None:
    try:
        import onnxruntime  # noqa: F401  # an optional extra
    except ImportError as error:
        raise UnsupportedError(
            "onnxruntime is not installed", todo="pip install 'torchrlopt[onnxruntime]'"
        ) from error
    refuse_opaque(model)
    elsewhere = {device.type for device in devices_of(captured)} - {"cpu"}
    if elsewhere:
        raise UnsupportedError("the ONNX Runtime executor runs on the CPU", got=", ".join(elsewhere))


def _wrong_optimisers(model: onnx_ir.Model) -> list[str]:
    """Passes of ONNX Runtime that would break the model.

    Pad_Fusion takes every Pad before a convolution for one of the image, also one that enlarges the kernel,
    and leaves a model behind that the session refuses.
    """
    pads = (node.outputs[0] for node in model.graph if node.op_type == "Pad")
    feeds_kernel = any(use.idx > 0 and use.node.op_type == "Conv" for pad in pads for use in pad.uses())
    return ["Pad_Fusion"] if feeds_kernel else []


class _Callable:
    """A lowered graph: arguments to feeds, fetches to outputs."""

    def __init__(self, model: onnx_ir.Model, captured: Captured, options: Options) -> None:
        position = positions(captured)
        is_static = captured.static_inputs if options.weights != "live" else frozenset[str]()
        names = [str(value.name) for value in model.graph.inputs]
        self._constants = captured.constants
        self._settings = options.executor_options or {}
        self._model = model
        self._weight_names = [name for name in names if name in is_static]
        self._weights = [position[name] for name in self._weight_names]
        self._feeds = [(name, position[name]) for name in names if name in position and name not in is_static]
        self._outputs = Outputs(captured.aten, position)
        self._cache = PrologueCache(self._open, options.weights)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the captured graph, in its order."""
        (session,) = self._cache.get([args[index] for index in self._weights])
        feeds = [as_tensor(args[index]) for _, index in self._feeds]
        return self._outputs(session(feeds), args)

    def _open(self, *weights: torch.Tensor) -> tuple[_Session]:
        """A session with these weights."""
        from onnxruntime import InferenceSession, OrtValue, SessionOptions

        held = dict(zip(self._weight_names, weights, strict=True)) | self._constants
        # ONNX Runtime reads rows one after the other.
        held = {name: tensor.detach().contiguous() for name, tensor in held.items()}
        proto = proto_without_weights(self._model, {name: tensor.shape for name, tensor in held.items()})
        settings = SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        settings.inter_op_num_threads = 1
        settings.log_severity_level = 3
        # Threads that spin would take the processor from PyTorch between the calls.
        entries = {"session.intra_op.allow_spinning": "0", **self._settings}
        for name, value in entries.items():
            settings.add_session_config_entry(name, str(value))
        values = {name: OrtValue.from_dlpack(tensor) for name, tensor in held.items() if tensor.numel()}
        settings.add_external_initializers(list(values), list(values.values()))
        try:
            session = InferenceSession(
                proto,
                settings,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=_wrong_optimisers(self._model),
            )
        except Exception as error:  # ONNX Runtime's errors have no common base
            raise LoweringError("ONNX Runtime refuses the model", got=str(error)) from error
        feeds = [name for name, _ in self._feeds]
        fetches = [str(value.name) for value in self._model.graph.outputs]

        def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            binding = session.io_binding()
            given = [OrtValue.from_dlpack(tensor) for tensor in tensors]
            for name, value in zip(feeds, given, strict=True):
                binding.bind_ortvalue_input(name, value)
            for name in fetches:
                binding.bind_output(name)
            session.run_with_iobinding(binding)
            return [from_dlpack(value) for value in binding.get_outputs()]

        # The session reads the weights where they are: they live as long as it does.
        run.__dict__["weights"] = held, values
        return (run,)


EXECUTOR = OnnxRuntimeExecutor()
