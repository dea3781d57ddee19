"""Numerically stable forms in other dtypes, with varying sizes, and after a convolution that absorbs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.crosses import nightly_but
from tests.e2e.models import RUNTIMES, STRICT
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Behind(nn.Module):
    """A function of what a convolution gives.

    Args:
        function: what is computed of an image of 8 channels.
    """

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.conv = nn.Conv2d(3, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.conv(x))


class Scaled(nn.GroupNorm):
    """A group norm with weights that are no ones and zeros."""

    def __init__(self) -> None:
        super().__init__(4, 8)
        nn.init.normal_(self.weight)
        nn.init.normal_(self.bias)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "celu": lambda y: F.celu(y, 0.7),
    "cumsum": lambda y: y.cumsum(1),
    "elu": lambda y: F.elu(y, 0.3),
    "erf": torch.erf,
    "log(sigmoid)": lambda y: torch.sigmoid(y).log(),
    "selu": F.selu,
    "softplus": F.softplus,
    "var": lambda y: y.var((2, 3)),
    "norm": lambda y: torch.linalg.vector_norm(y, 1, (2, 3)),
    "amax": lambda y: y.masked_fill(y > 0, float("-inf")).amax(1),
}


@pytest.mark.parametrize(
    "dtype",
    nightly_but([torch.float32], [torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
@pytest.mark.parametrize("name", [*FUNCTIONS, "group_norm"])
@pytest.mark.parametrize("runtime", nightly_but(RUNTIMES[:1], RUNTIMES))
def test_dtypes(runtime: str, name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Behind(Scaled() if name == "group_norm" else FUNCTIONS[name]).eval().to(dtype)
    x = torch.randn(2, 3, 6, 6, dtype=dtype)
    run = optimise(model, (x,), **{**STRICT, "on_error": "fallback", "cache": False, "executor": runtime})
    with torch.no_grad():
        found, expected = run(x), model(x)
    assert found.dtype == expected.dtype
    # Runtimes round the convolution to narrow types at other places than PyTorch.
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 6e-2}.get(dtype, 2e-5)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    if dtype is torch.float32 and (runtime, name) != ("openvino", "cumsum"):
        assert run.report.kept == "rewritten"


@pytest.mark.parametrize("name", ["elu", "group_norm", "log(sigmoid)", "softplus"])
@pytest.mark.parametrize("runtime", nightly_but(RUNTIMES[:1], RUNTIMES))
def test_sizes_that_vary(runtime: str, name: str) -> None:
    torch.manual_seed(0)
    model = Behind(Scaled() if name == "group_norm" else FUNCTIONS[name]).eval()
    options = {**STRICT, "cache": False, "executor": runtime}
    run = torch.compile(model, backend="rlopt", dynamic=True, options=options)
    with torch.no_grad():
        for batch, size in ((2, 6), (3, 9), (5, 7)):
            x = torch.randn(batch, 3, size, size)
            torch.testing.assert_close(run(x), model(x), rtol=2e-5, atol=2e-5)
