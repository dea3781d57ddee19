"""The ONNX standard's node tests in the reference interpreter: csrc/tools/reference/."""

from __future__ import annotations

import numpy as np

from tests.e2e.test_onnx_nodes import standard_cases, variants_of, with_constants
from torchrlopt import _C, _tools
from torchrlopt.errors import RlOptError
from torchrlopt.onnx.files import prepared
from torchrlopt.onnx.reader import read

# The standard has no such operators, or no case of them with one output, constant parameters and a reference.
_NOT_THERE = {
    "And",
    "Cast",
    "ConstantOfShape",
    "FusedConv",
    "FusedMatMul",
    "LayerNormalization",
    "Not",
    "Shrink",
    "Xor",
}
# The reference has no such operators: no substitution has them.
_WITHOUT_REFERENCE = {
    "ArgMax",
    "ArgMin",
    "BitShift",
    "DepthToSpace",
    "Einsum",
    "GatherElements",
    "GatherND",
    "Hardmax",
    "LRN",
    "LpNormalization",
    "Resize",
    "RotaryEmbedding",
    "ScatterElements",
    "ScatterND",
    "SpaceToDepth",
    "TopK",
}
# Expected values in the steps of bfloat16, and what the interpreter does not have.
_OTHERWISE = ("bf16", "averagepool_2d_ceil_last_window_starts_on_pad")


def widened(array: object) -> np.ndarray:
    """The interpreter takes reals in double precision."""
    found = np.asarray(array)
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def test_every_typed_case_of_the_standard() -> None:
    wrong, seen = [], set()
    for name, case in standard_cases().items():
        try:
            variants = list(variants_of(case))
        except RlOptError:  # sequences
            continue
        for variant in variants:
            model, inputs = with_constants(*variant[:2])
            try:
                graph = read(prepared(model)).graph
            except RlOptError:
                continue
            operators = {str(graph.node(id_)["op"]) for id_ in graph.topological_order()}
            if operators & {"Opaque", *_WITHOUT_REFERENCE} or name.endswith(_OTHERWISE):
                continue
            names = [value.name for value in model.graph.input]
            got = _tools.evaluate(graph, dict(zip(names, map(widened, inputs), strict=True)), "float64")
            seen |= operators
            for expected, value in zip(map(np.asarray, variant[2]), got, strict=True):
                tolerance = 2e-3 if expected.dtype.itemsize == 2 else 1e-4
                if expected.shape != value.shape or not np.allclose(
                    value.astype(np.float64),
                    expected.astype(np.float64),
                    tolerance,
                    tolerance / 10,
                    equal_nan=True,
                ):
                    wrong.append(name)
    assert not wrong, wrong
    assert {str(op["name"]) for op in _C.ops() if op["is_typed"]} - seen <= _NOT_THERE | _WITHOUT_REFERENCE
