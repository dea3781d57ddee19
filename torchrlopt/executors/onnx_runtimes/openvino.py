"""The OpenVINO executor: compiles the rewritten model with OpenVINO for the CPU.

OpenVINO reads the weights in place, as constants, and folds and packs them. A compiled model belongs to one
set of weights: if one of them changes, the model is recompiled. With live weights they stay inputs. Needs the
extra `openvino`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch
from numpy.typing import NDArray

from torchrlopt.errors import LoweringError
from torchrlopt.executors.onnx_runtimes.chained_products import may_crash
from torchrlopt.executors.onnx_runtimes.first_run import Request
from torchrlopt.executors.onnx_runtimes.openvino_build import compiled_of, new_core, tensor_of
from torchrlopt.executors.onnx_runtimes.session_call import Runtime, Session, SessionExecutor
from torchrlopt.executors.weights.half_precision import lacks_kernels

# OpenVINO computes 64-bit integers of ONNX with 32 bits. That is enough for indices, sizes and axes: the
# operators in the first set read or move them, those in the second compute them. Models that calculate with
# other 64-bit integers, compare them or return them are refused.
_MAY_READ_INT64 = frozenset(
    {
        "Constant", "Expand", "Gather", "GatherElements", "GatherND", "Pad", "ReduceL1", "ReduceL2",
        "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
        "ReduceSumSquare", "Reshape", "Resize", "ScatterElements", "ScatterND", "Slice", "Split", "Squeeze",
        "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
_MAY_GIVE_INT64 = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size", "TopK"})


# In 8 bits OpenVINO saturates where PyTorch wraps around; these operators do neither.
_MAY_GIVE_INT8 = frozenset(
    {
        "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Concat", "Constant", "Expand",
        "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Max", "Min", "Pad", "ReduceMax",
        "ReduceMin", "Reshape", "Slice", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze",
        "Where",
    }
)  # fmt: skip
_OF_8_BITS = frozenset({onnx_ir.DataType.INT8, onnx_ir.DataType.UINT8})


def _that_saturate(model: onnx_ir.Model) -> dict[onnx_ir.Node, str]:
    """The nodes that compute 8-bit numbers."""
    return {
        node: "OpenVINO saturates numbers of 8 bits"
        for node in model.graph
        if node.op_type not in _MAY_GIVE_INT8
        and not _OF_8_BITS.isdisjoint(each.dtype for each in node.outputs)
    }


def _of_64_bits(model: onnx_ir.Model) -> dict[onnx_ir.Node, str]:
    """The nodes that need all 64 bits of their numbers."""
    wide = onnx_ir.DataType.INT64
    found = {}
    for node in model.graph:
        given = {value.dtype for value in node.outputs}
        types = given | {value.dtype for value in node.inputs if value is not None}
        computes = node.op_type not in _MAY_READ_INT64 or (
            node.op_type.startswith("Reduce") and wide in given
        )
        returns = any(value.is_graph_output() and value.dtype == wide for value in node.outputs)
        is_refused = wide in types and (computes or returns) and node.op_type not in _MAY_GIVE_INT64
        if is_refused or onnx_ir.DataType.DOUBLE in types:
            found[node] = "OpenVINO computes with 32 bits"
    return found


def _of_other_widths(model: onnx_ir.Model) -> dict[onnx_ir.Node, str]:
    """The nodes whose integers overflow or lose bits differently from PyTorch's."""
    return _that_saturate(model) | _of_64_bits(model)


def _request(
    model: onnx_ir.Model, held: Mapping[str, torch.Tensor], settings: Mapping[str, object]
) -> Request:
    """What a model is compiled from; see `session_call.Runtime`."""
    properties: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": _precision(model),
        # Pinning a thread to a core that another runtime's thread uses was seen to double the time.
        "ENABLE_CPU_PINNING": "NO",
    }
    if may_crash(model, frozenset(held)):
        properties["SNIPPETS_MODE"] = "DISABLE"  # elementwise operators then run in separate kernels
    properties |= settings
    return Request(onnx_ir.to_proto(model).SerializeToString(), properties)


def _open(
    model: onnx_ir.Model,
    held: Mapping[str, torch.Tensor],
    feeds: Sequence[str],
    settings: Mapping[str, object],
) -> Session:
    """A compiled model with these weights; see `session_call.Opener`."""
    request = _request(model, held, settings)
    try:
        tensors = {name: _shared(tensor) for name, tensor in held.items()}
        compiled = compiled_of(request.proto, tensors, request.settings)
    except Exception as error:  # OpenVINO's errors have no common base
        raise LoweringError("OpenVINO refuses the model", got=str(error), is_bug=False) from error
    # Unread inputs are no longer inputs of the compiled network.
    ports = {name: port for port in compiled.inputs for name in port.get_names()}
    read = [(index, ports[name]) for index, name in enumerate(feeds) if name in ports]
    idle = collections.deque([_Request(compiled, read)])

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # A request can serve only one thread at a time.
        try:
            request = idle.pop()
        except IndexError:
            request = _Request(compiled, read)
        try:
            return request(tensors)
        finally:
            idle.append(request)

    # The model reads the weights in place, so keep them alive as long as the model.
    run.__dict__["weights"] = held
    return run


class _Request:
    """An inference request of a compiled model. If all sizes are fixed, its tensors are set up once.

    Copies use numpy: PyTorch would wake its threads, which then spin while OpenVINO computes (resnet18: 12.1
    instead of 8.2 ms).

    Args:
        compiled: the model.
        read: for each input, its index among the feeds and its port.
    """

    def __init__(self, compiled: Any, read: Sequence[tuple[int, Any]]) -> None:
        self._request = compiled.create_infer_request()
        self._read = read
        ports = [*(port for _, port in read), *compiled.outputs]
        self._is_static = all(port.partial_shape.is_static for port in ports)
        self._inputs = [_bits(self._request.get_tensor(port))[0] for _, port in read if self._is_static]
        self._outputs = [_bits(tensor) for tensor in self._request.output_tensors if self._is_static]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on the feeds and return the fetches."""
        if self._is_static:
            for (index, _), own in zip(self._read, self._inputs, strict=True):
                np.copyto(own, _array(tensors[index]), casting="no")
            self._request.infer(share_outputs=True)
            return [_copied(*own) for own in self._outputs]
        for index, port in self._read:
            self._request.set_tensor(port, _shared(tensors[index]))
        self._request.infer(share_outputs=True)
        return [_copied(*_bits(tensor)) for tensor in self._request.output_tensors]


def _precision(model: onnx_ir.Model) -> str:
    """The precision of all operators: half precision only if nothing in the graph is float32.

    By default OpenVINO uses bfloat16 for float32 models on processors that support it, and for float16 models
    if "f16" is requested on a processor without kernels for it.
    """
    # Constants are left out: Resize has its factors in float32, whatever it computes in.
    results = (value for node in model.graph if node.op_type != "Constant" for value in node.outputs)
    types = {value.dtype for value in (*model.graph.inputs, *results)}
    if onnx_ir.DataType.FLOAT in types:
        return "f32"
    if onnx_ir.DataType.BFLOAT16 in types:
        return "bf16"
    return "f16" if onnx_ir.DataType.FLOAT16 in types and not lacks_kernels() else "f32"


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The memory of a tensor; bfloat16, which numpy lacks, is viewed as integers."""
    array: NDArray[Any] = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array


def _shared(tensor: torch.Tensor) -> Any:
    """An OpenVINO tensor that shares the tensor's memory."""
    return tensor_of(_array(tensor), tensor.dtype is torch.bfloat16)


def _bits(tensor: Any) -> tuple[NDArray[Any], bool]:
    """The memory of an OpenVINO tensor, viewed as in `_array`, and whether it is bfloat16."""
    import openvino

    is_bfloat16 = tensor.element_type == openvino.Type.bf16
    return tensor.data.view("int16") if is_bfloat16 else tensor.data, is_bfloat16


def _copied(array: NDArray[Any], is_bfloat16: bool) -> torch.Tensor:
    tensor = torch.from_numpy(array.copy())
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor


def open_file(path: Path, threads: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Compile an unmodified file for the latency of one request: the baseline for this executor.

    Args:
        path: of an ONNX model.
        threads: per request.

    Returns:
        A function from arrays of the inputs to arrays of the outputs, in order.
    """
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",  # on some processors the default rounds to bfloat16
    }
    compiled = new_core().compile_model(str(path), "CPU", settings)
    names = [value.any_name for value in compiled.inputs]
    return lambda arrays: list(compiled(dict(zip(names, arrays, strict=True))).to_tuple())


EXECUTOR = SessionExecutor(
    Runtime(
        "OpenVINO",
        "openvino",
        _open,
        _request,
        Path(__file__).with_name("openvino_build.py"),
        _of_other_widths,
    )
)
