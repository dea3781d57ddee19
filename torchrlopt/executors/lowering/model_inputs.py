"""Fake tensors for the inputs of a model read from a file; nothing is allocated."""

from __future__ import annotations

from typing import Any

import onnx_ir
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from torchrlopt.errors import LoweringError
from torchrlopt.ops.emitter import Emitter
from torchrlopt.ops.onnx_types import torch_dtype
from torchrlopt.torch_private.dynamo import ConstantSource

_HINT = 7  # example value for a symbolic size; 0 and 1 are special


def fake_input(emitter: Emitter, value: onnx_ir.Value) -> torch.Tensor:
    """A fake tensor with the type of a value; each symbolic dim gets its own symbol.

    Raises:
        LoweringError: its type is unknown, torch lacks the element type, or it is too large to address.
    """
    if value.shape is None:
        raise LoweringError("a graph input has no shape", got=value.name)
    dtype = torch_dtype(value.dtype)
    sizes = [dim if isinstance(dim, int) else _symbol(emitter) for dim in value.shape]
    try:
        with emitter.fake():
            fake = torch.empty(sizes, dtype=dtype, device=emitter.device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise LoweringError("a graph input cannot be a tensor", where=str(value.name), got=reason) from error
    return fake


def _symbol(emitter: Emitter) -> Any:
    """An unknown size; its source is numbered, because torch generates code from such names."""
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    example = torch.empty(_HINT, dtype=torch.bool)
    return emitter.fake_mode.from_tensor(
        example, symbolic_context=context, source=ConstantSource(emitter.next_size())
    ).shape[0]
