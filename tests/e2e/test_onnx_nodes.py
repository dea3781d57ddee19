"""The ONNX standard's node tests through import, lowering and eager execution.

A case passes, or is refused with a typed error. No number may be wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from onnx.backend.test.case.test_case import TestCase

from tests.crosses import nightly_but
from torchrlopt import _C
from torchrlopt.errors import RlOptError, UnsupportedError
from torchrlopt.executors.registry import get
from torchrlopt.onnx.files import prepared
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.writer import write
from torchrlopt.ops.onnx_types import tensor_of
from torchrlopt.options import LoweringOptions

# As many as pass, of the operators and of those that the standard expands to simpler ones.
PASSED = {"operators": 1004, "expanded": 382}

# Relative and absolute tolerance per element type of the expected output. The expected values of the narrow
# types were computed in that type, step by step, by the standard's numpy reference.
_TOLERANCE = {
    "float64": (1e-7, 1e-9),
    "float32": (1e-4, 1e-5),
    "float16": (4e-3, 2e-3),
    "bfloat16": (2e-2, 1e-2),
}


# Their expected values stand in the standard as literals with four decimals.
_FOUR_DECIMALS = {"test_averagepool_2d_ceil_last_window_starts_on_pad", "test_gridsample_bicubic"}


# The standard has no case of them with one output and constant parameters, in an opset that is read.
_NOT_WRITTEN_ANEW = {"And", "Not", "Xor", "ConstantOfShape", "LayerNormalization", "Shrink"}


@functools.cache
def standard_cases() -> dict[str, TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the standard's own reference divides by zero on purpose
        from onnx.backend.test.loader import load_model_tests

        return {case.name: case for case in load_model_tests(kind="node")}


def _to_torch(array: Any) -> torch.Tensor:
    return tensor_of(onnx_ir.tensor(np.asarray(array)))


def variants_of(case: TestCase) -> Iterator[tuple[onnx.ModelProto, list[Any], list[Any]]]:
    """Per data set: the model, its inputs and outputs."""
    for inputs, expected in case.data_sets:
        if not all(isinstance(x, np.ndarray | np.generic) for x in (*inputs, *expected)):
            raise UnsupportedError("a sequence or an optional is no tensor")
        yield case.model, list(inputs), list(expected)


def with_constants(model: onnx.ModelProto, inputs: list[Any]) -> tuple[onnx.ModelProto, list[Any]]:
    """The same case with short vectors (axes, sizes, bounds) as the constants that exported models have."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.input[:]
    kept = []
    for index, (value, array) in enumerate(zip(model.graph.input, inputs, strict=True)):
        if index > 0 and np.ndim(array) <= 1 and np.size(array) <= 64:
            changed.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), value.name))
        else:
            changed.graph.input.append(value)
            kept.append(array)
    return changed, kept


def _run(model: onnx.ModelProto, inputs: list[Any]) -> tuple[Any, ...]:
    """Import, write, lower and run."""
    lowered = get("eager").lower(write(read(prepared(model))), None, LoweringOptions())
    return lowered(*[_to_torch(x) for x in inputs])


def _mismatch(expected: Any, got: Any, is_rounded: bool) -> str | None:
    """What is wrong with an output, None if nothing is."""
    expected = np.asarray(expected)
    if not isinstance(got, torch.Tensor):
        return f"no tensor: {type(got)}"
    wanted = _to_torch(expected)
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        return f"type {got.dtype}{tuple(got.shape)}, expected {wanted.dtype}{tuple(wanted.shape)}"
    name = str(wanted.dtype).removeprefix("torch.")
    if name not in _TOLERANCE:
        return None if torch.equal(wanted, got) else "integers differ"
    rtol, atol = (0.0, 6e-5) if is_rounded else _TOLERANCE[name]
    a, b = wanted.double().numpy(), got.double().numpy()
    if np.allclose(b, a, rtol=rtol, atol=atol, equal_nan=True):
        return None
    return f"largest difference {np.nanmax(np.abs(a - b))}"


def _compared(case: TestCase, expected: list[Any], got: tuple[Any, ...]) -> tuple[str, str]:
    """("passed" | "wrong", why)."""
    for index, (want, have) in enumerate(zip(expected, got, strict=True)):
        reason = _mismatch(want, have, case.name in _FOUR_DECIMALS)
        if reason is not None:
            return "wrong", f"{case.name}, output {index}: {reason}"
    return "passed", ""


def outcome(case: TestCase) -> tuple[str, str]:
    """("passed" | "unsupported" | "wrong", why) of a case; constants are tried where run-time values fail."""
    result = ("passed", "")
    try:
        for model, inputs, expected in variants_of(case):
            try:
                got = _run(model, inputs)
            except RlOptError:
                got = _run(*with_constants(model, inputs))
            result = max(result, _compared(case, expected, got))
    except RlOptError as error:
        return "unsupported", str(error)
    return result


@pytest.mark.parametrize("part", nightly_but(["operators"], PASSED))
def test_every_case_passes_or_is_refused(part: str) -> None:
    outcomes = {
        name: outcome(case)
        for name, case in standard_cases().items()
        if ("_expanded" in name) == (part == "expanded")
    }
    assert not [why for kind, why in outcomes.values() if kind == "wrong"]
    refused = "\n".join(f"{name}: {why}" for name, (kind, why) in outcomes.items() if kind == "unsupported")
    assert sum(kind == "passed" for kind, _ in outcomes.values()) == PASSED[part], refused


@pytest.mark.nightly
def test_typed_operators_mean_the_same_when_written_anew() -> None:
    """Up to three cases per operator through graph text, so that no node of the source can be put back."""
    seen: Counter[str] = Counter()
    wrong = []
    for case in standard_cases().values():
        if outcome(case)[0] != "passed":
            continue
        for model, inputs, expected in variants_of(case):
            model, inputs = with_constants(model, inputs)
            try:
                program = read(prepared(model))
            except RlOptError:
                continue  # a constant that the model computes from: no business of the writer
            nodes = [program.graph.node(id_) for id_ in program.graph.topological_order()]
            operators = {str(node["op"]) for node in nodes} - {"Input", "Weight", "Constant"}
            if "Opaque" in operators or all(seen[op] >= 3 for op in operators):
                continue
            seen.update(operators)
            for node in program.source.graph:
                node.name = f"{node.name} of the source"
            rewritten = dataclasses.replace(program, graph=_C.parse_graph(program.graph.text()))
            lowered = get("eager").lower(write(rewritten), None, LoweringOptions())
            kind, why = _compared(case, expected, lowered(*[_to_torch(x) for x in inputs]))
            if kind == "wrong":
                wrong.append(why)
    assert not wrong, "\n".join(wrong)
    table = {str(op["name"]) for op in _C.ops() if op["is_typed"] and op["domain"] == ""}
    assert table - set(seen) <= _NOT_WRITTEN_ANEW
