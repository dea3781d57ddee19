"""An ATen call becomes an ONNX node, and the node becomes that call again: for all rows of both tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.capture.capture_calls import capture_function
from torchrlopt.capture.whole import whole_operators
from torchrlopt.executors.lowering.onnx_to_aten import lower_model
from torchrlopt.ops import broadcast, elementwise, reduce, resize

REAL = torch.tensor([[-1.5, -0.75, -0.25], [0.5, 0.875, 2.5]])
INTS = torch.tensor([[1, 2, 3], [4, 5, 6]])
BOOLS = REAL > 0

Call = tuple[Any, ...]  # an overload, its arguments


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _elementwise() -> dict[str, Call]:
    rows = {name: row for name, row in elementwise.ROWS.items() if row.is_captured}
    return {name: (_overload(f"{row.aten}.default"), REAL) for name, row in rows.items()}


def _broadcast() -> dict[str, Call]:
    calls = {}
    for name, target in broadcast.ROWS.items():
        x = BOOLS if "logical" in str(target) else INTS if "bitwise" in str(target) else REAL
        calls[name] = (target, x, x.flip(1))
    return calls


def _reductions() -> dict[str, Call]:
    axes = {name: 1 if "Prod" in name else [1] for name in reduce.ROWS}
    return {name: (_overload(rows[1]), REAL, axes[name], True) for name, rows in reduce.ROWS.items()}


def _resized() -> dict[str, Call]:
    calls = {
        f"{name}{rank}d": (_overload(f"{name}{rank}d.default"), torch.rand([1, 2] + [4] * rank), [8] * rank)
        for name in resize.NEAREST
        for rank in (1, 2, 3)
    }
    for name, (_, rank) in resize.INTERPOLATED.items():
        x = torch.rand([1, 2] + [4] * (rank - 2))
        calls[name] = (_overload(f"{name}.default"), x, [8] * (rank - 2), False)
    return calls


CALLS = _elementwise() | _broadcast() | _reductions() | _resized()

# Of these a kernel is taken where sizes are not known; else one product, or selection, for each axis.
BY_AXES = {name for name in _resized() if "2d" not in name} | {"_upsample_nearest_exact2d"}


@pytest.mark.parametrize("name", CALLS)
def test_the_call_comes_back(name: str) -> None:
    target, *arguments = CALLS[name]
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    rest = arguments[len(tensors) :]
    with whole_operators():
        record = capture_function(lambda *operands: target(*operands, *rest), *tensors)
    assert record.op_types() == {name if name[0].isupper() else "Resize": 1}
    lowered = lower_model(record.captured.model)
    (result,) = lowered(*tensors)
    torch.testing.assert_close(result, target(*arguments), equal_nan=True)
    if name not in BY_AXES:
        assert [node.target for node in lowered.graph.nodes if node.op == "call_function"] == [target]
