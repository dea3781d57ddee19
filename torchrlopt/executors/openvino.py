"""The OpenVINO executor: the rewritten model, compiled by OpenVINO for the CPU, inputs shared without copies.

The weights become constants by pointer, so that OpenVINO folds and packs them; a compiled model belongs to
one set of weights and is made anew when one changes (with live weights they stay inputs). Needs the extra
`openvino`.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchrlopt.errors import LoweringError, UnsupportedError
from torchrlopt.executors import Lowered
from torchrlopt.executors.onnx_calls import Session, SessionCallable, refuse_elsewhere, refuse_opaque
from torchrlopt.onnx_standard import standardise
from torchrlopt.options import Options

if TYPE_CHECKING:
    from torchrlopt.capture import Captured

# The precision to compute in, by the type of the weights: for float32 models OpenVINO itself takes bfloat16
# on processors that have it.
_PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "f16"}

# OpenVINO computes with 32 bits what has 64. Integers are indices and sizes as a rule; what could grow beyond
# is left to others.
_GROWING = ("CumSum", "MatMul", "Mul", "Pow", "ReduceProd", "BitShift")


class OpenVinoExecutor:
    """Runs a model in OpenVINO on the CPU."""

    name = "openvino"

    def lower(self, model: onnx_ir.Model, captured: Captured | None, options: Options) -> Lowered:
        """Build the callable; see `Executor.lower`.

        Raises:
            LoweringError: an operator is not ONNX's, or OpenVINO refuses the model.
            UnsupportedError: openvino is not installed, the inputs are not on the CPU, the model computes
                with 64 bits, or an output is no tensor.
        """
        if captured is None:
            raise UnsupportedError("the OpenVINO executor runs captured graphs", todo="open the file itself")
        try:
            import openvino  # noqa: F401  # an optional extra
        except ImportError as error:
            raise UnsupportedError(
                "openvino is not installed", todo="pip install 'torchrlopt[openvino]'"
            ) from error
        refuse_opaque(model)
        refuse_elsewhere(captured)
        _refuse_64_bits(model)
        standardise(model)
        with _disable_current_modes():
            return SessionCallable(model, captured, options, _open)


def _refuse_64_bits(model: onnx_ir.Model) -> None:
    for node in model.graph:
        types = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}
        grows = onnx_ir.DataType.INT64 in types and node.op_type in _GROWING
        if grows or onnx_ir.DataType.DOUBLE in types:
            raise UnsupportedError(
                "OpenVINO computes with 32 bits", where=str(node.name), got=f"{node.op_type} of 64"
            )


def _open(
    model: onnx_ir.Model,
    held: Mapping[str, torch.Tensor],
    feeds: Sequence[str],
    settings: Mapping[str, object],
) -> Session:
    """A compiled model with these weights; see `onnx_calls.Opener`."""
    import openvino

    proto = onnx_ir.to_proto(model).SerializeToString()
    dtypes = {tensor.dtype for tensor in held.values()}
    precision = next((name for dtype, name in _PRECISIONS.items() if dtype in dtypes), "f32")
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": precision,
        # A thread pinned to the core that another runtime's thread runs on was seen to double the time.
        "ENABLE_CPU_PINNING": "NO",
        **settings,
    }
    try:
        network = openvino.Core().read_model(proto)
        _hold(network, held)
        compiled = openvino.Core().compile_model(network, "CPU", properties)
    except Exception as error:  # OpenVINO's errors have no common base
        raise LoweringError("OpenVINO refuses the model", got=str(error)) from error
    # Inputs that nothing reads are not the network's any more.
    ports = {name: port for port in compiled.inputs for name in port.get_names()}
    read = [(index, ports[name]) for index, name in enumerate(feeds) if name in ports]
    idle = collections.deque([compiled.create_infer_request()])

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # A request serves one thread at a time.
        try:
            request = idle.pop()
        except IndexError:
            request = compiled.create_infer_request()
        for index, port in read:
            request.set_tensor(port, _shared(tensors[index]))
        request.infer()
        # The request's own memory is written anew at its next call.
        results = [_copied(tensor) for tensor in request.output_tensors]
        idle.append(request)
        return results

    # The model reads the weights where they are: they live as long as it does.
    run.__dict__["weights"] = held
    return run


def _hold(network: Any, held: Mapping[str, torch.Tensor]) -> None:
    """Exchange inputs of a network by constants, in place."""
    from openvino import op

    for parameter in network.get_parameters():
        (name,) = parameter.output(0).get_names()
        if name in held:
            parameter.output(0).replace(op.Constant(_shared(held[name])).output(0))
            network.remove_parameter(parameter)
    network.validate_nodes_and_infer_types()


def _shared(tensor: torch.Tensor) -> Any:
    """An OpenVINO tensor of the same memory."""
    import openvino

    if tensor.dtype is torch.bfloat16:  # numpy has no such type
        array = tensor.view(torch.int16).numpy()
        return openvino.Tensor(array, tensor.shape, openvino.Type.bf16)
    return openvino.Tensor(tensor.numpy(), shared_memory=True)


def _copied(tensor: Any) -> torch.Tensor:
    import openvino

    if tensor.element_type == openvino.Type.bf16:
        return torch.from_numpy(tensor.data.view("int16")).view(torch.bfloat16).clone()
    return torch.from_numpy(tensor.data).clone()


EXECUTOR = OpenVinoExecutor()
