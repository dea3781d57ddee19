"""The boundary between ONNX and the core: element types, dimensions, and the form of operators."""

from __future__ import annotations

import numpy as np
import onnx_ir
import pytest

from torchrlopt import _C
from torchrlopt.onnx.forms.to_onnx import onnx_form
from torchrlopt.onnx.forms.types import OTHER, core_dim, core_type


@pytest.mark.parametrize(
    ("text", "printed"),
    [("s0", "s0"), ("2*s0 + 1", "2*s0+1"), ("s0*s1 - s1", "s0*s1-s1"), ("batch.size", "batch.size")],
)
def test_dims_that_are_polynomials(text: str, printed: str) -> None:
    dim = core_dim(onnx_ir.SymbolicDim(text))
    builder = _C.GraphBuilder()
    assert builder.type((builder.add_input("x", ("f32", [dim or 0])), 0)) == ("f32", [printed])


@pytest.mark.parametrize("text", ["Max(1, s0)", "s0**2", "Mod(s0, 2)", "s0/2", "ceil(s0)"])
def test_other_expressions_are_sizes_of_their_own(text: str) -> None:
    dim, again = (core_dim(onnx_ir.SymbolicDim(text)) for _ in range(2))
    assert dim == again
    assert dim != core_dim(onnx_ir.SymbolicDim(text + "0"))
    builder = _C.GraphBuilder()
    builder.add_input("x", ("f32", [dim or 0]))


def test_sizes_without_a_name_are_equal_to_no_other() -> None:
    value = onnx_ir.Value(name="x", type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT))
    assert core_type(value) == ("f32", None)
    value.shape = onnx_ir.Shape([2, None, None])
    dtype, sizes = core_type(value)
    assert sizes is not None
    assert (dtype, sizes[0], len(set(sizes))) == ("f32", 2, 3)
    value.shape = onnx_ir.Shape([2, "n"])
    assert core_type(value) == ("f32", [2, "n"])
    value.type = onnx_ir.SequenceType(onnx_ir.TensorType(onnx_ir.DataType.FLOAT))
    assert core_type(value) == (OTHER, None)


def test_written_slices_have_axes_where_they_have_steps() -> None:
    attrs = {"axes": [1], "starts": [0], "ends": [4], "steps": [2]}
    form = onnx_form("Slice", attrs, ["f32"], 1, 1)
    assert {slot: array.tolist() for slot, array in form.constants.items()} == {
        1: [0],
        2: [4],
        3: [1],
        4: [2],
    }
    assert form.slots == (0,)


def test_bounds_are_written_in_the_type_of_the_operand() -> None:
    form = onnx_form("Clip", {"min": 0.0, "max": float("inf")}, ["f16"], 1, 1)
    assert list(form.constants) == [1]
    assert form.constants[1].dtype == np.float16
