"""The result of capturing an ATen graph: an ONNX model, and the names that relate the two."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
import torch


@dataclasses.dataclass(frozen=True)
class Captured:
    """A captured graph.

    The model's outputs are the distinct tensors that `aten` returns, in order of first appearance, without
    placeholders that are returned unchanged. `aten`'s own output node says how these, the returned inputs,
    Nones and scalars make up the result. The token of the last call with a side effect, if any, comes after
    them (`effects.py`).

    Attributes:
        model: the ONNX model. Its inputs are the placeholders of `aten` (tensors, and symbolic scalars as 0-d
            values; any other placeholder has none) and `constants`, in the order in which they are first
            read, so that plans do not depend on how the model was called. They are bound by name.
        aten: the AOT inference graph, unchanged.
        static_inputs: names of the inputs that are weights (parameters and buffers).
        constants: constants of more than 64 elements, by name of their input.
        values: ONNX value -> fx node whose output it is, `"name.i"` for element i of a tuple.
        origins: ONNX node -> fx node it was translated from; an absent node was merged or moved by the
            clean-up and does not correspond to a single ATen call.
        opaque: ATen operators that have no translation, in order of first appearance.
        fx_values: fx node or `"name.i"` -> ONNX value equal to it; the inverse of `values`, and more, as an
            equal value also stands for copies, no-op views and repeated expressions.
        groups: fx node of `origins` -> all fx nodes, in order, that its ONNX nodes stand for, if that is more
            than itself (a linear is a view, a product and a view).
        excluded: fx nodes that the user excludes: they are opaque, and run as they are.
    """

    model: ir.Model
    aten: torch.fx.GraphModule
    static_inputs: frozenset[str]
    constants: dict[str, torch.Tensor]
    values: dict[str, str]
    origins: dict[str, str]
    opaque: tuple[str, ...]
    fx_values: dict[str, str]
    groups: dict[str, tuple[str, ...]]
    excluded: frozenset[str] = frozenset()
