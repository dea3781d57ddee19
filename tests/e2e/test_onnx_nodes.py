"""The ONNX standard's node tests through import, lowering and eager execution.

Every case of the standard is either passed or on the list in `onnx_nodes_unsupported.txt`, with the reason
why. The list is two-sided: a case on it that passes fails here, and so does one that is not on it and does
not pass. A wrong number is never a reason: such a case cannot be listed.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import torch
from onnx.backend.test.case.test_case import TestCase

from torchrlopt.errors import RlOptError
from torchrlopt.executors import get
from torchrlopt.executors.converters.dtypes import tensor_of
from torchrlopt.onnx_files import prepared
from torchrlopt.onnx_reader import read
from torchrlopt.onnx_writer import write
from torchrlopt.options import Options

_LIST = Path(__file__).with_name("onnx_nodes_unsupported.txt")
MIN_PASSED = 700

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


@functools.cache
def _cases() -> dict[str, TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the standard's own reference divides by zero on purpose
        from onnx.backend.test.loader import load_model_tests

        return {case.name: case for case in load_model_tests(kind="node")}


def _listed() -> dict[str, str]:
    """Case name to reason."""
    lines = _LIST.read_text(encoding="utf-8").splitlines()
    pairs = (line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {pair[0]: pair[1] for pair in pairs}


def _to_torch(array: Any) -> torch.Tensor:
    return tensor_of(onnx_ir.tensor(np.asarray(array)))


def _run(case: TestCase) -> list[tuple[list[Any], tuple[Any, ...]]]:
    """(expected, got) of each data set; raises RlOptError where something is not supported."""
    model = prepared(case.model)
    lowered = get("eager").lower(write(read(model)), None, Options())
    results = []
    for inputs, expected in case.data_sets:
        if not all(isinstance(x, np.ndarray | np.generic) for x in (*inputs, *expected)):
            raise RlOptError("a sequence or an optional is no tensor")
        results.append((list(expected), lowered(*[_to_torch(x) for x in inputs])))
    return results


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


def outcome(case: TestCase) -> tuple[str, str]:
    """("passed" | "unsupported" | "wrong" | "crashed", why)."""
    try:
        for expected, got in _run(case):
            for index, (want, have) in enumerate(zip(expected, got, strict=True)):
                reason = _mismatch(want, have, case.name in _FOUR_DECIMALS)
                if reason is not None:
                    return "wrong", f"output {index}: {reason}"
    except RlOptError as error:
        return "unsupported", str(error)
    return "passed", ""


def test_every_case_passes_or_is_listed() -> None:
    listed = _listed()
    unknown = sorted(set(listed) - set(_cases()))
    wrong, unlisted, stale = [], [], []
    num_passed = 0
    for name, case in _cases().items():
        kind, why = outcome(case)
        num_passed += kind == "passed"
        if kind == "wrong":
            wrong.append(f"{name}: {why}")
        elif kind == "unsupported" and name not in listed:
            unlisted.append(f"{name}: {why}")
        elif kind == "passed" and name in listed:
            stale.append(name)
    assert not wrong, "\n".join(wrong)
    assert not unlisted, "\n".join(unlisted)
    assert not stale, f"listed as unsupported, but they pass: {stale}"
    assert not unknown, f"listed, but the standard has no such cases: {unknown}"
    assert num_passed >= MIN_PASSED
    assert num_passed + len(listed) == len(_cases())
