"""Shape inference: csrc/infer/.

Random static shapes are compared with the reference's in tests/property/test_infer_reference.py, and those of
the standard's cases in test_reference_standard.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.core_calls import infer, read_type
from torchrlopt import _C
from torchrlopt.errors import ModelFormatError

# Where nothing else is said below, an elementwise operator of one operand gives what it takes.
SAME = [
    *(
        str(op["name"])
        for op in _C.ops()
        if op["cost_class"] in ("Elementwise", "Transcendental") and op["min_inputs"] == op["max_inputs"] == 1
    ),
    *("Identity", "LpNormalization", "Softmax", "LogSoftmax", "Hardmax"),
]
BROADCAST = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum"]
LOGIC = ["And", "Or", "Xor"]
BITS = ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]
COMPARE = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
REDUCE = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]

Case = tuple[list[str], dict[str, Any], list[str]]

ONE_OF_EACH: dict[str, Case] = {
    **{op: (["f32[2,3]"], {}, ["f32[2,3]"]) for op in SAME},
    **{op: (["f32[2,3]", "f32[4,1,1]"], {}, ["f32[4,2,3]"]) for op in BROADCAST},
    **{op: (["bool[2,3]", "bool[3]"], {}, ["bool[2,3]"]) for op in LOGIC},
    **{op: (["i64[2,3]", "i64[3]"], {}, ["i64[2,3]"]) for op in BITS},
    **{op: (["f32[2,3]", "f32[3]"], {}, ["bool[2,3]"]) for op in COMPARE},
    **{f"Reduce{op}": (["f32[2,3]"], {"axes": [-1]}, ["f32[2,1]"]) for op in REDUCE},
    "BitwiseNot": (["i64[2]"], {}, ["i64[2]"]),
    "Not": (["bool[2]"], {}, ["bool[2]"]),
    "Cast": (["f32[2]"], {"to": "i64"}, ["i64[2]"]),
    "IsInf": (["f32[2]"], {}, ["bool[2]"]),
    "IsNaN": (["f32[2]"], {}, ["bool[2]"]),
    "CumSum": (["f32[2,3]"], {"axis": 1}, ["f32[2,3]"]),
    "Mod": (["f32[2]", "f32[1]"], {"fmod": 1}, ["f32[2]"]),
    "PRelu": (["f32[2,3]", "f32[3]"], {}, ["f32[2,3]"]),
    "BitShift": (["u8[2]", "u8[1]"], {"direction": "LEFT"}, ["u8[2]"]),
    "Where": (["bool[2,1]", "f32[3]", "f32[]"], {}, ["f32[2,3]"]),
    "MatMul": (["f32[5,2,3]", "f32[3,4]"], {}, ["f32[5,2,4]"]),
    "Gemm": (["f32[2,3]", "f32[3,4]", "f32[4]"], {}, ["f32[2,4]"]),
    "Einsum": (["f32[2,3]", "f32[3]"], {"equation": "ij,j->i"}, ["f32[2]"]),
    "Conv": (["f32[1,2,5,5]", "f32[4,2,3,3]"], {}, ["f32[1,4,3,3]"]),
    "ConvTranspose": (["f32[1,2,5,5]", "f32[2,4,3,3]"], {}, ["f32[1,4,7,7]"]),
    "Attention": (["f32[1,2,3,4]"] * 3, {}, ["f32[1,2,3,4]"]),
    "RotaryEmbedding": (["f32[1,2,3,4]", "f32[1,3,2]", "f32[1,3,2]"], {}, ["f32[1,2,3,4]"]),
    "BatchNormalization": (["f32[1,2,3]"] + ["f32[2]"] * 4, {}, ["f32[1,2,3]"]),
    "LayerNormalization": (["f32[2,3]", "f32[3]"], {}, ["f32[2,3]"]),
    "RMSNormalization": (["f32[2,3]", "f32[3]"], {}, ["f32[2,3]"]),
    "InstanceNormalization": (["f32[1,2,3]", "f32[2]", "f32[2]"], {}, ["f32[1,2,3]"]),
    "GroupNormalization": (["f32[1,2,3]", "f32[2]", "f32[2]"], {"num_groups": 2}, ["f32[1,2,3]"]),
    "LRN": (["f32[1,2,3]"], {"size": 3}, ["f32[1,2,3]"]),
    "MaxPool": (["f32[1,2,4,4]"], {"kernel_shape": [2, 2]}, ["f32[1,2,3,3]"]),
    "AveragePool": (["f32[1,2,4,4]"], {"kernel_shape": [2, 2]}, ["f32[1,2,3,3]"]),
    "GlobalAveragePool": (["f32[1,2,4,4]"], {}, ["f32[1,2,1,1]"]),
    "GlobalMaxPool": (["f32[1,2,4,4]"], {}, ["f32[1,2,1,1]"]),
    "Resize": (["f32[1,2,4]"], {"sizes": [1, 2, 8]}, ["f32[1,2,8]"]),
    "ArgMax": (["f32[2,3]"], {"axis": 1, "keepdims": 0}, ["i64[2]"]),
    "ArgMin": (["f32[2,3]"], {"axis": 1}, ["i64[2,1]"]),
    "TopK": (["f32[2,3]"], {"k": 2}, ["f32[2,2]", "i64[2,2]"]),
    "Reshape": (["f32[2,3]"], {"shape": [-1]}, ["f32[6]"]),
    "Flatten": (["f32[2,3,4]"], {}, ["f32[2,12]"]),
    "Squeeze": (["f32[2,1]"], {}, ["f32[2]"]),
    "Unsqueeze": (["f32[2]"], {"axes": [0]}, ["f32[1,2]"]),
    "Transpose": (["f32[2,3]"], {}, ["f32[3,2]"]),
    "Expand": (["f32[2,1]"], {"shape": [3]}, ["f32[2,3]"]),
    "Split": (["f32[5]"], {"sizes": [2, 3]}, ["f32[2]", "f32[3]"]),
    "Slice": (["f32[5]"], {"axes": [0], "starts": [1], "ends": [4]}, ["f32[3]"]),
    "Concat": (["f32[2]", "f32[3]"], {"axis": 0}, ["f32[5]"]),
    "Tile": (["f32[2]"], {"repeats": [3]}, ["f32[6]"]),
    "Pad": (["f32[2]"], {"pads": [1, 2]}, ["f32[5]"]),
    "Gather": (["f32[2,3]", "i64[4,5]"], {"axis": 1}, ["f32[2,4,5]"]),
    "GatherElements": (["f32[2,3]", "i64[2,5]"], {"axis": 1}, ["f32[2,5]"]),
    "GatherND": (["f32[2,3]", "i64[4,1]"], {}, ["f32[4,3]"]),
    "ScatterElements": (["f32[2,3]", "i64[1,3]", "f32[1,3]"], {}, ["f32[2,3]"]),
    "ScatterND": (["f32[2,3]", "i64[1,1]", "f32[1,3]"], {}, ["f32[2,3]"]),
    "DepthToSpace": (["f32[1,4,2,2]"], {"blocksize": 2}, ["f32[1,1,4,4]"]),
    "SpaceToDepth": (["f32[1,1,4,4]"], {"blocksize": 2}, ["f32[1,4,2,2]"]),
    "Shape": (["f32[2,3]"], {}, ["i64[2]"]),
    "Size": (["f32[2,3]"], {}, ["i64[]"]),
    "ConstantOfShape": ([], {"shape": [2], "dtype": "i32"}, ["i32[2]"]),
    "FusedConv": (["f32[1,2,5,5]", "f32[4,2,3,3]"], {"activation": "Relu"}, ["f32[1,4,3,3]"]),
    "FusedMatMul": (["f32[2,3]", "f32[3,4]", "f32[4]", "f32[2,4]"], {}, ["f32[2,4]"]),
}


def test_the_table_has_every_typed_operator() -> None:
    typed = {op["name"] for op in _C.ops() if op["is_typed"]}
    assert typed == set(ONE_OF_EACH)
    assert len(typed) >= 90


@pytest.mark.parametrize("op", ONE_OF_EACH)
def test_each_operator_is_inferred(op: str) -> None:
    types, attrs, expected = ONE_OF_EACH[op]
    assert infer(op, *types, **attrs) == expected


BIG = 2**63 - 1

SYMBOLIC: list[tuple[str, list[str], dict[str, Any], str]] = [
    ("Add", ["f32[s0,3]", "f32[s0,1]"], {}, "f32[s0,3]"),
    ("Add", ["f32[s0,1]", "f32[s1]"], {}, "f32[s0,s1]"),
    ("Add", ["f32[s0*s1]", "f32[s1*s0]"], {}, "f32[s0*s1]"),
    ("MatMul", ["f32[s0,s1,8]", "f32[8,4]"], {}, "f32[s0,s1,4]"),
    ("MatMul", ["f32[s0,2,s1]", "f32[s0,s1,3]"], {}, "f32[s0,2,3]"),
    ("Gemm", ["f32[s0,8]", "f32[4,8]", "f32[4]"], {"transB": 1}, "f32[s0,4]"),
    ("Einsum", ["f32[s0,s1,4]", "f32[s0,s2,4]"], {"equation": "bqd,bkd->bqk"}, "f32[s0,s1,s2]"),
    ("Conv", ["f32[s0,3,s1,s1]", "f32[8,3,3,3]"], {"pads": [1, 1, 1, 1]}, "f32[s0,8,s1,s1]"),
    ("Conv", ["f32[1,3,s1]", "f32[8,3,3]"], {}, "f32[1,8,s1-2]"),
    ("Conv", ["f32[1,3,2*s1]", "f32[8,3,2]"], {"strides": [2]}, "f32[1,8,s1]"),
    ("Conv", ["f32[1,3,s1]", "f32[8,3,3]"], {"strides": [2]}, "f32[1,8,(s1-3)//(2)+1]"),
    ("ConvTranspose", ["f32[1,3,s1]", "f32[3,8,2]"], {"strides": [2]}, "f32[1,8,2*s1]"),
    (
        "Attention",
        ["f32[s0,s1,32]", "f32[s0,s2,16]", "f32[s0,s2,16]"],
        {"q_num_heads": 4, "kv_num_heads": 2},
        "f32[s0,s1,32]",
    ),
    ("MaxPool", ["f32[1,3,s0]"], {"kernel_shape": [3], "pads": [1, 1]}, "f32[1,3,s0]"),
    (
        "MaxPool",
        ["f32[1,3,2*s0]"],
        {"kernel_shape": [2], "strides": [2], "ceil_mode": 1},
        "f32[1,3,(2*s0-1)//(2)+1]",
    ),
    ("GlobalAveragePool", ["f32[s0,3,s1,s2]"], {}, "f32[s0,3,1,1]"),
    ("Resize", ["f32[1,3,s0]"], {"scales": [1.0, 1.0, 2.0]}, "f32[1,3,2*s0]"),
    ("Resize", ["f32[1,3,2*s0]"], {"scales": [1.0, 1.0, 0.5]}, "f32[1,3,s0]"),
    ("ReduceSum", ["f32[s0,s1]"], {"axes": [1], "keepdims": 0}, "f32[s0]"),
    ("Reshape", ["f32[s0,s1,8]"], {"shape": [0, -1]}, "f32[s0,8*s1]"),
    ("Reshape", ["f32[s0,s1,8]"], {"shape": [-1, 8]}, "f32[s0*s1,8]"),
    ("Reshape", ["f32[s0,s1,8]"], {"shape": [0, 0, 2, 4]}, "f32[s0,s1,2,4]"),
    ("Reshape", ["f32[s0+1,8]"], {"shape": [0, 4, -1]}, "f32[s0+1,4,2]"),
    ("Reshape", ["f32[s0,8]"], {"shape": [-1, 4]}, "f32[2*s0,4]"),
    ("Reshape", ["f32[s0,6]"], {"shape": [-1, 4]}, "f32[(6*s0)//(4),4]"),
    ("Flatten", ["f32[s0,s1,4]"], {}, "f32[s0,4*s1]"),
    ("Squeeze", ["f32[s0,1]"], {"axes": [1]}, "f32[s0]"),
    ("Expand", ["f32[s0,1]"], {"shape": [1, 7]}, "f32[s0,7]"),
    ("Split", ["f32[s0,5]"], {"axis": 1, "sizes": [5]}, "f32[s0,5]"),
    ("Concat", ["f32[s0,3]", "f32[s1,3]", "f32[2,3]"], {"axis": 0}, "f32[s0+s1+2,3]"),
    ("Tile", ["f32[s0]"], {"repeats": [3]}, "f32[3*s0]"),
    ("Pad", ["f32[s0]"], {"pads": [2, 1]}, "f32[s0+3]"),
    ("Gather", ["f32[100,8]", "i64[s0,s1]"], {}, "f32[s0,s1,8]"),
    ("DepthToSpace", ["f32[s0,4,s1,s2]"], {"blocksize": 2}, "f32[s0,1,2*s1,2*s2]"),
    ("SpaceToDepth", ["f32[s0,1,2*s1,2*s2]"], {"blocksize": 2}, "f32[s0,4,s1,s2]"),
    ("Slice", ["f32[s0]"], {"axes": [0], "starts": [0], "ends": [BIG]}, "f32[s0]"),
    (
        "Slice",
        ["f32[s0]"],
        {"axes": [0], "starts": [0], "ends": [2**31 - 1], "steps": [2]},
        "f32[(s0+1)//(2)]",
    ),
    ("Slice", ["f32[s0+3]"], {"axes": [0], "starts": [1], "ends": [BIG]}, "f32[s0+2]"),
    ("Slice", ["f32[s0+3]"], {"axes": [0], "starts": [-2], "ends": [BIG]}, "f32[2]"),
    ("Slice", ["f32[s0+3]"], {"axes": [0], "starts": [0], "ends": [-1]}, "f32[s0+2]"),
    ("Slice", ["f32[s0+3]"], {"axes": [0], "starts": [1], "ends": [3]}, "f32[2]"),
    ("Slice", ["f32[s0]"], {"axes": [0], "starts": [-1], "ends": [-BIG], "steps": [-1]}, "f32[s0]"),
    ("Slice", ["f32[s0]"], {"axes": [0], "starts": [1], "ends": [BIG]}, "f32[(s0)[1::1]]"),
    ("Slice", ["f32[s0]"], {"axes": [0], "starts": [0], "ends": [4]}, "f32[(s0)[0:4:1]]"),
]


@pytest.mark.parametrize(("op", "types", "attrs", "expected"), SYMBOLIC)
def test_symbolic_dims_are_carried_exactly(
    op: str, types: list[str], attrs: dict[str, Any], expected: str
) -> None:
    assert infer(op, *types, **attrs) == [expected]


@pytest.mark.parametrize(
    ("op", "types", "attrs"),
    [case[:3] for case in SYMBOLIC if "[0:4" not in case[3] and case[0] != "Reshape"],
)
@pytest.mark.parametrize("size", [4, 7])
def test_symbolic_inference_agrees_with_static_inference(
    op: str, types: list[str], attrs: dict[str, Any], size: int
) -> None:
    """Numbers put in for the symbols before and after inference give the same shape."""
    numbers = {"s0": size, "s1": size + 2, "s2": size + 3}

    def put(text: str) -> str:
        dtype, dims = read_type(text)
        values = []
        for dim in dims:
            if "[" in (name := str(dim)):  # "(d)[a:b:c]" is the length of that slice
                source, _, bounds = name[1:].partition(")[")
                start, end, step = (int(part) if part else None for part in bounds.rstrip("]").split(":"))
                values.append(len(range(eval(source, {}, numbers))[start:end:step]))
            else:
                values.append(eval(name, {}, numbers))
        return f"{dtype}[{','.join(str(value) for value in values)}]"

    (symbolic,) = infer(op, *types, **attrs)
    assert infer(op, *(put(text) for text in types), **attrs) == [put(symbolic)]


@pytest.mark.parametrize(
    ("op", "types", "attrs", "message"),
    [
        ("Add", ["f32[s0]", "f32[s1]"], {}, "shapes that broadcast"),
        ("Add", ["f32[s0]", "f32[8]"], {}, "shapes that broadcast"),
        ("Add", ["f32[2]", "f16[2]"], {}, "one dtype"),
        ("Add", ["bool[2]", "bool[2]"], {}, "numeric"),
        ("Expand", ["f32[s0]"], {"shape": [4]}, "shapes that broadcast"),
        ("MatMul", ["f32[2,s0]", "f32[s1,3]"], {}, "equal contracted dims"),
        ("Concat", ["f32[s0,2]", "f32[s1,2]"], {"axis": 1}, "equal dims beside axis 1"),
        ("Split", ["f32[s0]"], {"sizes": [1, 1]}, "sum to s0"),
        ("Reshape", ["f32[s0,8]"], {"shape": [4, 8]}, "8*s0 elements"),
        ("Squeeze", ["f32[s0,1]"], {"axes": [0]}, "dim of 1 at axis 0"),
        ("Relu", ["bool[2]"], {}, "signed dtype"),
        ("Relu", ["u8[2]"], {}, "signed dtype"),
        ("Sqrt", ["i64[2]"], {}, "floating dtype"),
        ("Not", ["f32[2]"], {}, "bool for input 0"),
        ("BitwiseNot", ["f32[2]"], {}, "integer dtype"),
        ("BitShift", ["i8[2]", "i8[2]"], {"direction": "LEFT"}, "unsigned"),
        ("BitShift", ["u8[2]", "u8[2]"], {"direction": "UP"}, "LEFT or RIGHT"),
        ("Mod", ["f32[2]", "f32[2]"], {}, "integer dtype, or fmod=1"),
        ("And", ["i64[2]", "i64[2]"], {}, "bool for input 0"),
        ("Less", ["bool[2]", "bool[2]"], {}, "ordered numbers"),
        ("Less", ["f32[2]", "f64[2]"], {}, "one dtype"),
        ("Where", ["i64[2]", "f32[2]", "f32[2]"], {}, "bool for input 0"),
        ("Where", ["bool[2]", "f32[2]", "i64[2]"], {}, "one dtype"),
        ("PRelu", ["f32[3]", "f32[2,3]"], {}, "broadcasts to [3]"),
        ("Gelu", ["f32[2]"], {"approximate": "erf"}, '"none" or "tanh"'),
        ("Cast", ["f32[2]"], {"to": "float"}, "dtype name"),
        ("IsNaN", ["i64[2]"], {}, "floating dtype"),
        ("Sum", ["i64[2]", "i64[2]"], {}, "floating dtype"),
        ("Relu", ["f32[2]", "f32[2]"], {}, "1 to 1 inputs"),
        ("Where", ["bool[2]", "f32[2]"], {}, "3 to 3 inputs"),
        ("Max", [], {}, "1 or more inputs"),
        ("MatMul", ["f32[2,3]", "f32[2,3]"], {}, "equal contracted dims"),
        ("MatMul", ["f32[2,3]", "f16[3,2]"], {}, "one dtype"),
        ("MatMul", ["f32[]", "f32[3,2]"], {}, "rank 1 to 64"),
        ("MatMul", ["bool[2,2]", "bool[2,2]"], {}, "numeric"),
        ("MatMul", ["f32[2,3,4]", "f32[3,4,5]"], {}, "broadcast"),
        ("FusedMatMul", ["f32[2,3]", "f32[3,4]", "f32[2,1,4]"], {}, "broadcasts to [2,4]"),
        ("FusedMatMul", ["f32[2,3]", "f32[3,4]", None, "f32[4]"], {}, "shape [2,4]"),
        ("FusedMatMul", ["f32[2,3]", "f32[3,4]"], {"activation": "relu"}, "activation"),
        ("Gemm", ["f32[2,3]", "f32[3,4]", "f32[3]"], {}, "broadcasts to"),
        ("Gemm", ["f32[2,3]", "f32[3,4]"], {"transB": 1}, "contracted"),
        ("Einsum", ["f32[2,3]", "f32[4,2]"], {"equation": "ij,jk->ik"}, "one size per label"),
        ("Einsum", ["f32[2,3]"], {"equation": "ij,jk->ik"}, "2 operands"),
        ("Einsum", ["f32[2,3]"], {"equation": "ij->ijk"}, "output labels"),
        ("Einsum", ["f32[2,3]"], {"equation": "ij->ii"}, "distinct output labels"),
        ("Einsum", ["f32[2,3]"], {"equation": "i$->i"}, "letters"),
        ("Einsum", ["f32[2,3]"], {"equation": "ijk->i"}, "rank 3"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,2,3,3]"], {}, "input channels"),
        ("Conv", ["f32[1,4,5,5]", "f32[3,2,3,3]"], {"group": 2}, "group divides"),
        ("Conv", ["f32[1,4,5,5]", "f32[4,4,3,3]"], {"group": 0}, "positive group"),
        ("Conv", ["f32[1,3,2,5]", "f32[4,3,3,3]"], {}, "within the padded input"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3]"], {}, "rank 4"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3,3]", "f32[3]"], {}, "shape [4]"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3,3]"], {"strides": [1]}, "2 strides"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3,3]"], {"strides": [0, 1]}, "at least 1"),
        ("Conv", ["f32[1,3,5,5]", "f32[4,3,3,3]"], {"pads": [-1, 0, 0, 0]}, "at least 0"),
        ("Conv", ["i64[1,3,5,5]", "i64[4,3,3,3]"], {}, "floating"),
        ("FusedConv", ["f32[1,3,5,5]", "f32[4,3,3,3]", None, "f32[1,4,1,1]"], {}, "shape [1,4,3,3]"),
        ("ConvTranspose", ["f32[1,3,5,5]", "f32[4,3,3,3]"], {}, "input channels"),
        ("ConvTranspose", ["f32[1,3,5]", "f32[3,2,3]"], {"group": 2}, "group divides"),
        ("ConvTranspose", ["f32[1,3,5]", "f32[3,2,3]"], {"output_padding": [1]}, "below the stride"),
        ("Attention", ["f32[1,2,3,4]"] * 2 + ["f32[1,2,4,4]"], {}, "as many keys as values"),
        ("Attention", ["f32[1,3,3,4]", "f32[1,2,3,4]", "f32[1,2,3,4]"], {}, "multiple of the key heads"),
        ("Attention", ["f32[1,3,8]"] * 3, {}, "head counts"),
        ("Attention", ["f32[1,3,8]"] * 3, {"q_num_heads": 3, "kv_num_heads": 3}, "head count divides"),
        ("Attention", ["f32[1,2,3,4]"] * 3 + ["f32[3,2]"], {}, "broadcasts to"),
        ("Attention", ["f32[1,2,3,4]"] * 3 + ["f16[3,3]"], {}, "one dtype"),
        ("RotaryEmbedding", ["f32[1,2,3,5]", "f32[1,3,2]", "f32[1,3,2]"], {}, "even rotated size"),
        ("RotaryEmbedding", ["f32[1,3,8]", "f32[1,3,4]", "f32[1,3,4]"], {}, "num_heads"),
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
        ("ScatterElements", ["f32[2,3]", "i64[2,1]", "f32[2,2]"], {}, "shape [2,1]"),
        ("ScatterND", ["f32[2,3]", "i64[4,1]", "f32[4,2]"], {}, "shape [4,3]"),
        ("ScatterND", ["f32[2,3]", "i64[4,1]", "f32[4,3]"], {"reduction": "sum"}, "reduction of"),
        ("DepthToSpace", ["f32[1,6,2,2]"], {"blocksize": 2}, "blocksize * blocksize divides"),
        ("DepthToSpace", ["f32[1,4,2,2]"], {"blocksize": 2, "mode": "RCD"}, "mode of DCR or CRD"),
        ("SpaceToDepth", ["f32[1,4,3,2]"], {"blocksize": 2}, "blocksize divides"),
        ("ConstantOfShape", [], {"shape": [-1]}, "at least 0"),
        ("ConstantOfShape", [], {"shape": [1], "dtype": "float"}, "dtype name"),
        ("Trilu", ["f32[3]"], {}, "rank 2 to 64"),
        ("ReduceSum", ["f32[2,3]"], {"axes": [2]}, "axis of a tensor of rank 2"),
        ("ReduceSum", ["f32[2,3]"], {"axes": [1, -1]}, "distinct axes"),
        ("ReduceSum", ["f32[2,3]"], {"keepdims": 2}, "keepdims of 0 or 1"),
        ("ReduceMean", ["i64[2,3]"], {}, "floating"),
        ("ArgMax", ["f32[0,3]"], {}, "non-empty axis"),
        ("TopK", ["f32[2,3]"], {"k": 4}, "k of at most 3"),
        ("CumSum", ["f32[2,3]"], {"axis": 2}, "axis of a tensor"),
        ("MaxPool", ["f32[1,2,5,5]"], {"kernel_shape": [3]}, "2 positive kernel sizes"),
        ("MaxPool", ["f32[1,2,5,5]"], {"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}, "below the window"),
        ("MaxPool", ["f32[1,2,2,5]"], {"kernel_shape": [3, 3]}, "within the padded input"),
        ("AveragePool", ["f32[1,2]"], {"kernel_shape": []}, "rank 3 to 5"),
        ("GlobalMaxPool", ["f32[1,2]"], {}, "rank 3 to 64"),
        ("Resize", ["f32[1,2]"], {}, "either sizes or scales"),
        ("Resize", ["f32[1,2]"], {"scales": [2.0]}, "one size or scale per dim"),
        ("Resize", ["f32[1,2]"], {"scales": [2.0, -1.0]}, "positive scales"),
        ("BatchNormalization", ["f32[1,3,2]"] + ["f32[3]"] * 3 + ["f32[2]"], {}, "shape [3]"),
        ("BatchNormalization", ["f32[3]"] + ["f32[3]"] * 4, {}, "rank 2 to 64"),
        ("LayerNormalization", ["f32[2,3]", "f32[2,1]"], {}, "broadcasts to [3]"),
        ("GroupNormalization", ["f32[2,6,3]", "f32[6]", "f32[6]"], {"num_groups": 4}, "num_groups that"),
        ("LpNormalization", ["f32[2,3]"], {"p": 3}, "p of 1 or 2"),
        ("LRN", ["f32[2,3,4]"], {"size": 0}, "positive size"),
        ("Softmax", ["f32[2,3]"], {"axis": -3}, "axis of a tensor"),
        ("Softmax", ["i64[2,3]"], {}, "floating"),
    ],
)
def test_refusals_say_what_was_expected(
    op: str, types: list[str | None], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFormatError) as error:
        infer(op, *types, **attrs)
    assert str(error.value).startswith(f"{op}: expected ")
    assert message in str(error.value)
    assert ", got " in str(error.value)


def test_an_omitted_required_input_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="MatMul: expected input 1, got an omitted one"):
        infer("MatMul", "f32[2,2]", None)


def test_an_operand_of_unknown_rank_is_refused() -> None:
    builder = _C.GraphBuilder()
    opaque = builder.add_leaf("Opaque", [], {"op": "mystery"}, [("f32", None)])
    with pytest.raises(ModelFormatError, match="Relu: expected inputs of known rank"):
        builder.add_node("Relu", [(opaque, 0)], {})


@pytest.mark.parametrize(
    ("op", "types", "attrs"),
    [
        ("Tile", ["f32[4]"], {"repeats": [2**62]}),
        ("Conv", ["f32[1,1,9]", "f32[1,1,3]"], {"dilations": [2**62]}),
        ("MaxPool", ["f32[1,1,9]"], {"kernel_shape": [2**62], "dilations": [2**62]}),
        ("Pad", ["f32[4]"], {"pads": [2**62, 2**62]}),
        ("Reshape", ["f32[4]"], {"shape": [2**40, 2**40]}),
        ("Split", ["f32[4]"], {"sizes": [2**62, 2**62]}),
        ("Flatten", [f"f32[1,{2**40},{2**40}]"], {}),
    ],
)
def test_huge_numbers_are_refused_not_wrapped(op: str, types: list[str], attrs: dict[str, Any]) -> None:
    with pytest.raises(ModelFormatError):
        infer(op, *types, **attrs)


def test_a_group_that_divides_channels_is_accepted_by_each() -> None:
    assert infer("Conv", "f32[1,4,5,5]", "f32[4,2,3,3]", group=2) == ["f32[1,4,3,3]"]
    assert infer("ConvTranspose", "f32[1,4,5]", "f32[4,3,3]", group=2) == ["f32[1,6,7]"]
