"""Acceptance tests for a backend: weights, mutation, outputs, modes of users' programs. Fallback is off."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

from tests.e2e.models import (
    STRICT,
    Branches,
    ConvNorm,
    assert_same,
    build,
    compiled,
    last_report,
    was_rewritten,
)
from torchrlopt import optimise

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def update_in_place(model: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        mine.copy_(theirs)


def test_frozen_weights_stay_as_they_were() -> None:
    """As they were at the compile, not at the check before it, which gives constant weights some noise."""
    model, x = build(Branches), torch.randn(5, 16)
    with torch.no_grad():
        model.get_parameter("a.bias").zero_()
    run = optimise(model, x, **STRICT, weights="frozen")
    before = assert_same(model, run, x)
    with torch.no_grad():
        update_in_place(model, build(Branches, 1))
        assert torch.equal(run(x)[:, :32], before[:, :32]), "the merged linears are not evaluated again"


class ManyOutputs(Branches):
    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> Any:  # type: ignore[override]
        y = super().forward(x)
        return y, x.view(-1), x, y, None, x.shape[0], y[:, :4], unused


def test_outputs_that_are_views_inputs_repeated_none_or_numbers() -> None:
    model = build(ManyOutputs)
    run = compiled(model)
    for rows in (5, 6, 7):
        x, unused = torch.randn(rows, 16), torch.arange(3)
        with torch.no_grad():
            got, expected = run(x, unused), model(x, unused)
        torch.testing.assert_close(got[0], expected[0])
        assert got[1].data_ptr() == x.data_ptr()
        assert got[2] is x
        assert got[3] is got[0]
        assert got[4:6] == (None, rows)
        assert type(got[5]) is int
        assert got[6].data_ptr() == got[0].data_ptr()
        assert (got[6].shape, got[6].stride()) == (expected[6].shape, expected[6].stride())
        assert got[7] is unused
    assert was_rewritten()


def test_gradients_equal_eager(caplog: pytest.LogCaptureFixture) -> None:
    model = build(ConvNorm).train()
    plain = copy.deepcopy(model)
    run, x = compiled(model), torch.randn(2, 3, 9, 9)
    with caplog.at_level(logging.WARNING, logger="torchrlopt"):
        run(x).square().sum().backward()
    plain(x).square().sum().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert torch.equal(mine.grad, theirs.grad)
    assert last_report().kept == "original"
    assert "gradients" in str(last_report().fallback_reason)
    (warning,) = caplog.messages
    assert "torch.no_grad()" in warning


def test_training_after_inference_and_back() -> None:
    model, x = build(Branches), torch.randn(5, 16)
    run = compiled(model)
    assert_same(model, run, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        run(x).square().sum().backward()
        optimizer.step()
        assert_same(model, run, x)


def test_autocast() -> None:
    model, x = build(Branches), torch.randn(5, 16)

    def inside(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    with torch.no_grad():
        expected = inside(x)
        for run in (compiled(inside), compiled(model)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                got = run(x)
            assert got.dtype == torch.bfloat16
            torch.testing.assert_close(got, expected)
            assert was_rewritten()


LAYOUTS: dict[str, Any] = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "sliced": lambda x: x.repeat(1, 1, 2, 1)[:, :, ::2],
    "expanded": lambda x: x[:, :, :1].expand(-1, -1, 9, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs(layout: str) -> None:
    model = build(ConvNorm)
    x = LAYOUTS[layout](torch.randn(2, 3, 9, 9))
    run = compiled(model)
    with torch.no_grad():
        got, expected = run(x), model(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    assert was_rewritten()


def test_sizes_0_and_1_after_dynamic() -> None:
    model = build(Branches)
    run = compiled(model)
    for rows in (3, 4, 0, 1, 17):
        assert_same(model, run, torch.randn(rows, 16))


class Mixed(Branches):
    def forward(self, x: torch.Tensor, ids: torch.Tensor, keep: torch.Tensor) -> Any:  # type: ignore[override]
        y = super().forward(x) ** 3
        return torch.where(keep[:, None], y[ids], torch.zeros_like(y)), ids + 1, ~keep, y.argmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bool_int_and_float_types(dtype: torch.dtype) -> None:
    model = build(Mixed).to(dtype)
    x = torch.randn(5, 16, dtype=dtype)
    assert_same(
        model, compiled(model), x, torch.tensor([3, 1, 1, 0, 4]), torch.tensor([True, False] * 2 + [True])
    )
    assert was_rewritten()


@pytest.mark.parametrize("takes", [True, False])
def test_complex_inputs_and_outputs_are_left_alone(takes: bool) -> None:
    def run(x: torch.Tensor) -> Any:
        return x.abs() if takes else torch.fft.fft(x)

    x = torch.randn(5, 16, dtype=torch.complex64 if takes else torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(compiled(run)(x), run(x))
    assert "complex" in str(last_report().fallback_reason)


def test_a_position_that_hangs_on_data_is_left_alone() -> None:
    model = build(Branches)

    def run(x: torch.Tensor, start: torch.Tensor) -> Any:
        return torch.narrow(model(x), 0, start, 2)

    with torch.no_grad():
        x, start = torch.randn(5, 16), torch.tensor(1)
        torch.testing.assert_close(compiled(run)(x, start), run(x, start))
    assert last_report().kept == "original"
    assert "call .item() before it" in str(last_report().fallback_reason)


def test_random_numbers_are_left_alone() -> None:
    model = build(Branches)

    def run(x: torch.Tensor) -> Any:
        return nn.functional.dropout(model(x), 0.5, training=True)

    x, fast = torch.randn(5, 16), compiled(run)
    with torch.no_grad():
        torch.manual_seed(7)
        expected = run(x)
        torch.manual_seed(7)
        torch.testing.assert_close(fast(x), expected)
    assert "random" in str(last_report().fallback_reason)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_at_the_borders(dtype: torch.dtype) -> None:
    lin = nn.Linear(8, 8)

    def narrow(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(lin(x.float()))
        return y.to(dtype), y + 1

    x = torch.randn(4, 8).to(dtype)
    with torch.no_grad():
        got, expected = compiled(narrow)(x), narrow(x)
    assert got[0].dtype == dtype
    torch.testing.assert_close(got[0].float(), expected[0].float(), rtol=0.13, atol=0.01)
    torch.testing.assert_close(got[1], expected[1])
    assert last_report().kept == "rewritten"
