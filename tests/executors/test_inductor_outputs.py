"""Outputs of the executor `inductor` have the strides of the model's, whatever layout inductor uses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.crosses import nightly_but
from torchrlopt import optimise
from torchrlopt.errors import UnsupportedError


class Views(nn.Module):
    """A convolution whose output is handed out through views."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 16, 1), nn.BatchNorm2d(16)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)
        self.view = view

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.view(self.norm(self.conv(x)))


@pytest.mark.parametrize("weights", nightly_but(["check"], ["check", "frozen"]))
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.chunk(2, 1)[1],
        lambda y: y[:, ::3],
        lambda y: y.transpose(1, 3),
        lambda y: y[:, :1],
        lambda y: y,
    ],
    ids=["chunk", "step", "transpose", "one", "whole"],
)
def test_strides_of_views(view: Callable[[torch.Tensor], torch.Tensor], weights: str) -> None:
    model, x = Views(view).eval(), torch.randn(2, 4, 8, 8)
    fast = optimise(model, x, executor="inductor", weights=weights, measure=False, on_error="raise")
    assert fast.report.kept == "rewritten"
    for _ in range(2):
        x = torch.randn_like(x)
        with torch.no_grad():
            expected, got = model(x), fast(x)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def test_sizes_that_vary() -> None:
    model = Views(lambda y: y.transpose(1, 3)).eval()
    fast = optimise(model, torch.randn(2, 4, 8, 8), executor="inductor", measure=False, on_error="raise")
    for batch in (3, 5):
        x = torch.randn(batch, 4, 8, 8)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
            assert fast(x).stride() == model(x).stride()


@pytest.mark.parametrize("weights", nightly_but(["check"], ["check", "frozen"]))
def test_an_output_that_is_a_weight_is_that_weight(weights: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(4, 4), requires_grad=False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return (x @ self.table).relu() @ self.table, self.table.t()

    model, x = Model().eval(), torch.randn(3, 4)
    settings = {"measure": False, "on_error": "raise", "min_gain": -10.0, "cache": False}
    fast = optimise(model, x, executor="inductor", weights=weights, **settings)
    for _ in range(2):
        assert fast(x)[1].data_ptr() == model.table.data_ptr()


def test_without_a_compiler_one_line_says_so() -> None:
    options = {"executor_options": {"cpp.cxx": (None, "no-such-compiler")}, "measure": False}
    with pytest.raises(UnsupportedError, match=r"no C\+\+ compiler.*apt install g\+\+"):
        optimise(nn.ReLU().eval(), torch.ones(3), executor="inductor", on_error="raise", **options)
