"""Outputs have the original's strides, even with gaps or repeated elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.crosses import nightly_but
from torchrlopt.compile import backend

OPTIONS: dict[str, Any] = {"on_error": "raise", "measure": False, "cache": False, "prices": "typical"}

# The rewritten graph computes each of them in another layout: without the concatenation with nothing, which
# copies, with another order of the sum and the transposition, or contiguous.
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "last_positions_of_a_cache": lambda cache, x: torch.cat([cache, x.transpose(1, 2)], 2)[:, :, -5:],
    "every_other_element": lambda cache, x: torch.cat([cache, x.transpose(1, 2)], 2)[:, :, 1::2, ::2],
    "expanded": lambda cache, x: x.sum(2, keepdim=True).expand(-1, -1, 4, -1),
    "expanded_slice": lambda cache, x: torch.cat([cache, x.transpose(1, 2)], 2)[:, :, 2:7, :1].expand(
        -1, -1, -1, 3
    ),
}


@pytest.mark.parametrize(
    ("executor", "name", "is_dynamic"),
    nightly_but(
        [*(("eager", name, True) for name in FUNCTIONS), ("onnxruntime", "every_other_element", True),
         ("openvino", "expanded_slice", True)],
        itertools.product(["eager", "onnxruntime", "openvino"], FUNCTIONS, [False, True]),
    ),
)  # fmt: skip
def test_outputs_with_gaps(name: str, executor: str, is_dynamic: bool) -> None:
    if executor != "eager":
        pytest.importorskip(executor, reason="the executor needs it")
    function = FUNCTIONS[name]
    options = OPTIONS | {"executor": executor}
    cache, x = torch.randn(2, 3, 0, 8), torch.randn(2, 9, 3, 8)
    if is_dynamic:
        torch._dynamo.mark_dynamic(cache, 0)
        torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        got = torch.compile(function, backend="rlopt", options=options)(cache, x)
    assert backend.reports()[-1].kept == "rewritten"
    expected = function(cache, x)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("executor", ["eager", "onnxruntime", "openvino"])
def test_gaps_of_symbolic_length(executor: str) -> None:
    if executor != "eager":
        pytest.importorskip(executor, reason="the executor needs it")
    function = FUNCTIONS["last_positions_of_a_cache"]
    cache, first = torch.randn(2, 3, 0, 8), torch.randn(2, 9, 3, 8)
    torch._dynamo.mark_dynamic(first, 1)
    compiled = torch.compile(function, backend="rlopt", options=OPTIONS | {"executor": executor})
    for x in (first, torch.randn(2, 12, 3, 8)):
        with torch.no_grad():
            got = compiled(cache, x)
        assert got.stride() == function(cache, x).stride()
        torch.testing.assert_close(got, function(cache, x))
    assert backend.reports()[-1].kept == "rewritten"


def test_strides_that_the_model_reads() -> None:
    def overlapping(x: Tensor) -> Tensor:
        y = (x + 1).transpose(0, 2)
        size, stride = list(y.size()), list(y.stride())
        size[1], stride[2] = size[1] * 2 - 1, stride[2] // 2
        return y.as_strided((size[0], 2, size[2]), stride) * 2

    compiled = torch.compile(overlapping, backend="rlopt", options=OPTIONS)
    first = torch.randn(3, 6, 8)
    torch._dynamo.mark_dynamic(first, 1)
    for x in (first, torch.randn(3, 10, 8)):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), overlapping(x))
    assert [report.kept for report in backend.reports()[-1:]] == ["rewritten"]


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "every_other_column": lambda x: x[:, ::2].t(),
    "half": lambda x: x.split(2, 1)[1],
    "expanded": lambda x: x[:1].expand(3, -1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_an_input_is_returned_as_one(name: str, dtype: torch.dtype) -> None:
    x = torch.arange(16).reshape(4, 4).to(dtype)
    view, more = torch.compile(lambda x: (VIEWS[name](x), x + 1 - 1), backend="rlopt", options=OPTIONS)(x)
    assert backend.reports()[-1].kept == "rewritten"
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert view.stride() == VIEWS[name](x).stride()
    assert torch.equal(view, VIEWS[name](x))
    assert torch.equal(more, x)
