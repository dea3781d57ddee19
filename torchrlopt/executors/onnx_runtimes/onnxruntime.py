"""The ONNX Runtime executor: runs the rewritten model in a session that shares tensors without copies.

The session reads the weights in place, as initializers, and folds and packs them. It belongs to one set of
weights: if one of them changes, another session is opened. With live weights they stay inputs. Needs the
extra `onnxruntime`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch.utils.dlpack import from_dlpack

from torchrlopt.errors import LoweringError
from torchrlopt.executors.onnx_runtimes.first_run import Request
from torchrlopt.executors.onnx_runtimes.onnxruntime_build import session_of
from torchrlopt.executors.onnx_runtimes.session_call import (
    Runtime,
    Session,
    SessionExecutor,
    proto_without_weights,
)

_IN_NUMPY = frozenset(
    onnx_ir.DataType[name]
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8")
)


def _wrong_optimisers(model: onnx_ir.Model) -> list[str]:
    """ONNX Runtime passes that would break the model.

    Pad_Fusion assumes that every Pad before a convolution pads the image, even if it enlarges the kernel, and
    leaves a model that the session rejects.
    """
    pads = (node.outputs[0] for node in model.graph if node.op_type == "Pad")
    feeds_kernel = any(use.idx > 0 and use.node.op_type == "Conv" for pad in pads for use in pad.uses())
    return ["Pad_Fusion"] if feeds_kernel else []


def _request(
    model: onnx_ir.Model, held: Mapping[str, torch.Tensor], settings: Mapping[str, object]
) -> Request:
    """What a session is created from; see `session_call.Runtime`."""
    # Threads that keep spinning after a call would take the processor from PyTorch. Without any spinning,
    # every parallel operator waits for threads to wake up (squeezenet1_1: 2.4 ms, with it 1.9).
    entries = {"session.force_spinning_stop": "1", **settings}
    return Request(
        proto_without_weights(model, {name: tensor.shape for name, tensor in held.items()}),
        {
            "threads": torch.get_num_threads(),
            "entries": {name: str(value) for name, value in entries.items()},
            "disabled": _wrong_optimisers(model),
        },
    )


def _open(
    model: onnx_ir.Model,
    held: Mapping[str, torch.Tensor],
    feeds: Sequence[str],
    settings: Mapping[str, object],
) -> Session:
    """A session with these weights; see `session_call.Opener`."""
    request = _request(model, held, settings)
    values = {name: _shared(tensor) for name, tensor in held.items() if tensor.numel()}
    try:
        session = session_of(request.proto, values, request.settings)
    except Exception as error:  # ONNX Runtime's errors have no common base
        raise LoweringError("ONNX Runtime refuses the model", got=str(error), is_bug=False) from error
    fetches = [str(value.name) for value in model.graph.outputs]
    is_bool = [value.dtype == onnx_ir.DataType.BOOL for value in model.graph.outputs]

    def run_copying(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # ONNX Runtime reads numpy arrays in place. In some versions it copies results into new ones.
        feed = {name: tensor.numpy() for name, tensor in zip(feeds, tensors, strict=True)}
        return [torch.from_numpy(array) for array in session.run(fetches, feed)]

    def run_sharing(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        binding = session.io_binding()
        given = [_shared(tensor) for tensor in tensors]
        for name, value in zip(feeds, given, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in fetches:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        found = [from_dlpack(value) for value in binding.get_outputs()]
        # ONNX Runtime shares booleans as bytes.
        return [x.view(torch.bool) if wants else x for x, wants in zip(found, is_bool, strict=True)]

    run = run_copying if _are_small(model) else run_sharing
    # The session reads the weights in place, so keep them alive as long as the session.
    run.__dict__["weights"] = held, values
    return run


def _are_small(model: onnx_ir.Model) -> bool:
    """Whether copying the outputs is faster than binding them, and numpy has all dtypes in and out."""
    small = 1 << 16
    has_type = all(value.dtype in _IN_NUMPY for value in (*model.graph.inputs, *model.graph.outputs))
    shapes = [value.shape for value in model.graph.outputs]
    are_known = all(shape is not None and shape.is_static() for shape in shapes)
    return has_type and are_known and sum(math.prod(shape.numpy()) for shape in shapes if shape) <= small


def _shared(tensor: torch.Tensor) -> Any:
    """An OrtValue that shares the tensor's memory."""
    from onnxruntime import OrtValue

    if tensor.dtype is torch.bool:  # ONNX Runtime does not support booleans in DLPack
        return OrtValue.ortvalue_from_numpy(tensor.numpy())
    return OrtValue.from_dlpack(tensor)


def open_file(path: Path, threads: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Open an unmodified file with ONNX Runtime's default settings: the baseline for this executor.

    Args:
        path: of an ONNX model.
        threads: per operator.

    Returns:
        A function from arrays of the inputs to arrays of the outputs, in order.
    """
    from onnxruntime import InferenceSession, SessionOptions

    settings = SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    session = InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


EXECUTOR = SessionExecutor(
    Runtime(
        "ONNX Runtime",
        "onnxruntime",
        _open,
        _request,
        Path(__file__).with_name("onnxruntime_build.py"),
        raises_above=True,
    )
)
