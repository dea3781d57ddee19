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
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.dlpack import from_dlpack

from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.executors import Lowered
from torchrlopt.executors.fx_values import static_stride
from torchrlopt.executors.layout import reorder, restride
from torchrlopt.executors.outputs import dense_order
from torchrlopt.executors.prologue_cache import PrologueCache
from torchrlopt.onnx_standard import standardise
from torchrlopt.options import Options

if TYPE_CHECKING:
    from torchrlopt.capture import Captured

_OPAQUE_DOMAIN = "rlopt.aten"

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
    opaque = sorted({node.op_type for node in model.graph if node.domain == _OPAQUE_DOMAIN})
    if opaque:
        raise LoweringError("operators that ONNX does not have", got=", ".join(opaque))
    for node in captured.aten.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise UnsupportedError("the ONNX Runtime executor runs on the CPU", got=value.device)


class _Callable:
    """A lowered graph: arguments to feeds, fetches to outputs."""

    def __init__(self, model: onnx_ir.Model, captured: Captured, options: Options) -> None:
        placeholders = list(captured.aten.graph.find_nodes(op="placeholder"))
        position = {node.name: index for index, node in enumerate(placeholders)}
        is_static = captured.static_inputs if options.weights != "live" else frozenset[str]()
        names = [str(value.name) for value in model.graph.inputs]
        self._constants = captured.constants
        self._settings = options.executor_options or {}
        self._model = model
        self._weight_names = [name for name in names if name in is_static]
        self._weights = [position[name] for name in self._weight_names]
        self._feeds = [(name, position[name]) for name in names if name in position and name not in is_static]
        self._outputs = _Outputs(captured.aten, position)
        self._cache = PrologueCache(self._open, options.weights)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run on the inputs of the captured graph, in its order."""
        (session,) = self._cache.get([args[index] for index in self._weights])
        feeds = [_as_tensor(args[index]) for _, index in self._feeds]
        return self._outputs(session(feeds), args)

    def _open(self, *weights: torch.Tensor) -> tuple[_Session]:
        """A session with these weights."""
        from onnxruntime import InferenceSession, OrtValue, SessionOptions

        held = dict(zip(self._weight_names, weights, strict=True)) | self._constants
        # ONNX Runtime reads rows one after the other.
        held = {name: tensor.detach().contiguous() for name, tensor in held.items()}
        proto = _proto_without_weights(self._model, held)
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
            session = InferenceSession(proto, settings, providers=["CPUExecutionProvider"])
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


def _as_tensor(value: Any) -> torch.Tensor:
    """A feed; sizes come as ints."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous()
    return torch.tensor(int(value))


def _proto_without_weights(model: onnx_ir.Model, held: dict[str, torch.Tensor]) -> bytes:
    """The serialised model with initializers of these names whose data comes from elsewhere."""
    import onnx

    proto = onnx_ir.to_proto(model)
    inputs = [value for value in proto.graph.input if value.name in held]
    for value in inputs:
        proto.graph.input.remove(value)
        tensor = proto.graph.initializer.add()
        tensor.name = value.name
        tensor.data_type = value.type.tensor_type.elem_type
        tensor.dims.extend(held[value.name].shape)
        if held[value.name].numel() > 0:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key, entry.value = "location", "weights are given in memory"
    data: bytes = proto.SerializeToString()
    return data


class _Outputs:
    """Puts fetched tensors in the place and layout in which the captured graph returns them."""

    def __init__(self, aten: fx.GraphModule, position: dict[str, int]) -> None:
        (output,) = aten.graph.find_nodes(op="output")
        fetched: dict[fx.Node, int] = {}
        # For each output its place among the fetched tensors or, counted from -1 downwards, the arguments.
        self._places: list[int | None] = []
        self._layouts: list[Callable[[torch.Tensor], torch.Tensor]] = []
        for source in output.args[0]:
            if source is None:
                self._places.append(None)
            elif source.op == "placeholder":
                self._places.append(-1 - position[source.name])
            elif isinstance(source.meta.get("val"), torch.Tensor):
                self._places.append(fetched.setdefault(source, len(fetched)))
                if len(self._layouts) < len(fetched):
                    self._layouts.append(_layout(source))
            else:
                raise UnsupportedError("an output of the graph is no tensor", where=source.name)

    def __call__(self, fetches: list[torch.Tensor], args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Args: what the session returned; the arguments of the call."""
        laid = [layout(tensor) for layout, tensor in zip(self._layouts, fetches, strict=True)]
        return tuple(
            None if place is None else laid[place] if place >= 0 else args[-1 - place]
            for place in self._places
        )


def _layout(source: fx.Node) -> Callable[[torch.Tensor], torch.Tensor]:
    """What gives a contiguous result the strides of the original."""
    order = dense_order(source.meta["val"])
    if order is None or order == list(range(len(order))):
        return lambda tensor: tensor
    stride = static_stride(source)
    if stride is not None:
        return lambda tensor: restride(tensor, stride)
    return lambda tensor: reorder(tensor, order)


EXECUTOR = OnnxRuntimeExecutor()
