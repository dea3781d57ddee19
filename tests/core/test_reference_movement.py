"""Views, concatenations, indexing, shapes: csrc/tools/reference/{movement,gather}.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.core.core_calls import assert_equal, evaluate, infer
from torchrlopt import _C, _tools
from torchrlopt.errors import ModelFormatError

Array = NDArray[Any]

X = np.arange(24.0).reshape(2, 3, 4)
BIG = 2**63 - 1
SIDES = [(0, 1), (2, 1), (3, 0)]

Side = tuple[int, int]


def padded(x: Array, a: Side, b: Side, c: Side, value: float) -> Array:
    return np.pad(x, [a, b, c], constant_values=value)


VIEWS: list[tuple[str, dict[str, Any], Callable[[Array], Array]]] = [
    ("Reshape", {"shape": [4, -1]}, lambda x: x.reshape(4, 6)),
    ("Flatten", {}, lambda x: x.reshape(2, 12)),
    ("Flatten", {"axis": 0}, lambda x: x.reshape(1, 24)),
    ("Flatten", {"axis": -1}, lambda x: x.reshape(6, 4)),
    ("Flatten", {"axis": 3}, lambda x: x.reshape(24, 1)),
    ("Unsqueeze", {"axes": [0, -1]}, lambda x: x[None, ..., None]),
    ("Unsqueeze", {"axes": [3, 1]}, lambda x: x.reshape(2, 1, 3, 1, 4)),
    ("Transpose", {}, lambda x: x.transpose()),
    ("Transpose", {"perm": [1, 0, 2]}, lambda x: x.transpose(1, 0, 2)),
    ("Transpose", {"perm": [2, 0, 1]}, lambda x: x.transpose(2, 0, 1)),
    ("Expand", {"shape": [5, 1, 3, 1]}, lambda x: np.broadcast_to(x, (5, 2, 3, 4))),
    ("Expand", {"shape": []}, lambda x: x),
    ("Tile", {"repeats": [2, 1, 3]}, lambda x: np.tile(x, (2, 1, 3))),
    ("Tile", {"repeats": [1, 0, 1]}, lambda x: np.tile(x, (1, 0, 1))),
    ("Slice", {"axes": [1], "starts": [1], "ends": [BIG]}, lambda x: x[:, 1:]),
    ("Slice", {"axes": [-1, 0], "starts": [-3, 0], "ends": [-1, 1]}, lambda x: x[:1, :, -3:-1]),
    ("Slice", {"axes": [2], "starts": [0], "ends": [99], "steps": [3]}, lambda x: x[:, :, ::3]),
    ("Slice", {"axes": [2], "starts": [-1], "ends": [-BIG], "steps": [-1]}, lambda x: x[:, :, ::-1]),
    ("Slice", {"axes": [2], "starts": [99], "ends": [0], "steps": [-2]}, lambda x: x[:, :, 99:0:-2]),
    ("Slice", {"axes": [1], "starts": [3], "ends": [1]}, lambda x: x[:, 3:1]),
    ("Slice", {"axes": [1], "starts": [-99], "ends": [2]}, lambda x: x[:, -99:2]),
    ("Pad", {"pads": [0, 1, 2, 1, 0, 0], "value": 2.5}, lambda x: padded(x, (0, 1), (1, 0), (2, 0), 2.5)),
    ("Pad", {"pads": [0, -1, 1, 0, 0, -2]}, lambda x: padded(x, (0, 0), (0, 0), (1, 0), 0.0)[:, 1:, :-2]),
    ("Pad", {"pads": [0, 2, 3, 1, 1, 0], "mode": "reflect"}, lambda x: np.pad(x, SIDES, "reflect")),
    ("Pad", {"pads": [0, 2, 3, 1, 1, 0], "mode": "edge"}, lambda x: np.pad(x, SIDES, "edge")),
    ("Pad", {"pads": [0, 2, 3, 1, 1, 0], "mode": "wrap"}, lambda x: np.pad(x, SIDES, "wrap")),
    ("Trilu", {}, np.triu),
    ("Trilu", {"upper": 0, "k": -1}, lambda x: np.tril(x, -1)),
    ("Trilu", {"k": 2}, lambda x: np.triu(x, 2)),
]


def test_an_index_out_of_range_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="Gather: expected indices from -2 to 1, got 2"):
        evaluate("Gather", X, np.array([2]))


def test_shapes_and_constants() -> None:
    assert_equal(evaluate("Shape", X)[0], np.array([2, 3, 4]))
    assert_equal(evaluate("Shape", X, start=-2, end=-1)[0], np.array([3]))
    assert_equal(evaluate("Shape", X, start=2, end=1)[0], np.array([], dtype=np.int64))
    assert_equal(evaluate("Size", X)[0], np.array(24))
    assert_equal(evaluate("ConstantOfShape", shape=[2, 0])[0], np.zeros((2, 0)))
    assert_equal(evaluate("ConstantOfShape", shape=[2], value=0.1)[0], np.full(2, 0.1))
    assert_equal(evaluate("ConstantOfShape", shape=[2], value=3, dtype="i64")[0], np.array([3, 3]))
    assert_equal(evaluate("ConstantOfShape", shape=[1], value=1, dtype="bool")[0], np.array([True]))


@pytest.mark.parametrize(
    ("type_", "attrs", "expected"),
    [
        (("f32", [2]), {"value": [0.25, -3.0]}, np.array([0.25, -3.0])),
        (("f32", [2, 2]), {"value": [1.5]}, np.full((2, 2), 1.5)),
        (("i64", []), {"int_value": [-4]}, np.array(-4)),
        (("bool", [2]), {"int_value": [0, 1]}, np.array([False, True])),
        (("f32", [0]), {}, np.zeros(0)),
    ],
)
def test_constants(type_: Any, attrs: dict[str, Any], expected: Array) -> None:
    builder = _C.GraphBuilder()
    node = builder.add_leaf("Constant", [], attrs, [type_])
    builder.set_outputs([(node, 0)], ["y"])
    assert_equal(_tools.evaluate(builder.finish(), {})[0], expected)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "message"),
    [
        ("Reshape", ["f32[2,3]"], {"shape": [4, -1]}, "6 elements"),
        ("Reshape", ["f32[2,3]"], {"shape": [-1, -1]}, "at most one -1"),
        ("Reshape", ["f32[2,3]"], {"shape": [2, 2]}, "6 elements"),
        ("Reshape", ["f32[2,3]"], {"shape": [2, 3, 0]}, "dim to copy"),
        ("Reshape", ["f32[2,3]"], {"shape": [-2, 3]}, "sizes, 0 or -1"),
        ("Reshape", ["f32[0,3]"], {"shape": [0, -1], "allowzero": 1}, "no 0 beside -1"),
        ("Flatten", ["f32[2,3]"], {"axis": 3}, "axis of at most 2"),
        ("Squeeze", ["f32[2,1]"], {"axes": [0]}, "dim of 1"),
        ("Squeeze", ["f32[s0,1]"], {}, "axes, where a dim is symbolic"),
        ("Squeeze", ["f32[1,1]"], {"axes": [0, -2]}, "distinct axes"),
        ("Unsqueeze", ["f32[2]"], {"axes": [3]}, "axis of a tensor of rank 2"),
        ("Transpose", ["f32[2,3]"], {"perm": [0, 0]}, "distinct axes"),
        ("Transpose", ["f32[2,3]"], {"perm": [0]}, "permutation of 2"),
        ("Expand", ["f32[2,3]"], {"shape": [4, 3]}, "broadcast"),
        ("Expand", ["f32[2,3]"], {"shape": [-1, 3]}, "sizes of at least 0"),
        ("Split", ["f32[2,3]"], {"axis": 1, "sizes": [1, 1]}, "sum to 3"),
        ("Slice", ["f32[3]"], {"axes": [0], "starts": [0], "ends": [1, 2]}, "as many"),
        ("Slice", ["f32[3]"], {"axes": [0], "starts": [0], "ends": [1], "steps": [0]}, "other than 0"),
        ("Slice", ["f32[3]"], {"axes": [1], "starts": [0], "ends": [1]}, "axis of a tensor"),
        ("Concat", ["f32[2,3]", "f32[2,4]"], {"axis": 0}, "equal dims beside axis 0"),
        ("Concat", ["f32[2,3]", "i64[2,3]"], {"axis": 0}, "one dtype"),
        ("Tile", ["f32[2,3]"], {"repeats": [2]}, "one repeat count per dim"),
        ("Pad", ["f32[2,3]"], {"pads": [0, 0]}, "two pads per dim"),
        ("Pad", ["f32[2,3]"], {"pads": [0, 3, 0, 0], "mode": "reflect"}, "can fill"),
        ("Pad", ["f32[2,3]"], {"pads": [-2, 0, -1, 0]}, "crop no more"),
        ("Pad", ["f32[2,3]"], {"pads": [0, 0, 0, 0], "mode": "mirror"}, "mode of"),
        ("Gather", ["f32[2,3]", "f32[2]"], {}, "i32 or i64"),
        ("GatherElements", ["f32[2,3]", "i64[3,3]"], {"axis": 1}, "within"),
        ("GatherND", ["f32[2,3]", "i64[2,3]"], {}, "last dim is 1 to 2"),
        ("GatherND", ["f32[2,3]", "i64[3,1]"], {"batch_dims": 1}, "equal batch dims"),
        ("ScatterElements", ["f32[2,3]", "i64[2,1]", "f32[2,2]"], {}, r"shape \[2,1\]"),
        ("ScatterND", ["f32[2,3]", "i64[4,1]", "f32[4,2]"], {}, r"shape \[4,3\]"),
        ("ScatterND", ["f32[2,3]", "i64[4,1]", "f32[4,3]"], {"reduction": "sum"}, "reduction of"),
        ("DepthToSpace", ["f32[1,6,2,2]"], {"blocksize": 2}, "blocksize \\* blocksize divides"),
        ("DepthToSpace", ["f32[1,4,2,2]"], {"blocksize": 2, "mode": "RCD"}, "mode of DCR or CRD"),
        ("SpaceToDepth", ["f32[1,4,3,2]"], {"blocksize": 2}, "blocksize divides"),
        ("ConstantOfShape", [], {"shape": [-1]}, "at least 0"),
        ("ConstantOfShape", [], {"shape": [1], "dtype": "float"}, "dtype name"),
        ("Trilu", ["f32[3]"], {}, "rank 2 to 64"),
    ],
)
def test_refusals(op: str, types: list[str], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=f"^{op}: expected .*{message}.*, got "):
        infer(op, *types, **attrs)
