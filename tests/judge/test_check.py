"""The check: correct results pass, wrong ones are refused, and timing distinguishes fast from slow."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchrlopt.capture.sampling import random_inputs
from torchrlopt.errors import UnsupportedError, VerificationError
from torchrlopt.judge import right
from torchrlopt.judge.floats import Own
from torchrlopt.judge.graph_check import GraphCheck
from torchrlopt.judge.stored import errors_as_dict, errors_from
from torchrlopt.judge.tolerances import TOLERANCES


def traced(function: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    """The ATen graph of a function of tensors, returning a tuple."""
    graph: torch.fx.GraphModule = make_fx(function)(*inputs)
    return graph


def x_and_w(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(16, 64, generator=generator).to(dtype),
        torch.randn(64, 32, generator=generator).to(dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_another_order_of_summation_passes(dtype: torch.dtype) -> None:
    x, w = x_and_w(dtype)
    graph = traced(lambda x, w: (x @ w,), x, w)
    wide = torch.promote_types(dtype, torch.float32)

    def halves(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        x, w = x.to(wide), w.to(wide)
        return ((x[:, :32] @ w[:32] + x[:, 32:] @ w[32:]).to(dtype),)

    error = right.verify(graph, graph.forward, halves, [x, w]).worst
    assert error <= TOLERANCES[dtype].rmse_factor


@pytest.mark.parametrize(
    ("dtype", "mistake"), [(torch.float32, 1 + 1e-4), (torch.float32, 1.03), (torch.bfloat16, 1.15)]
)
def test_a_small_factor_is_refused(dtype: torch.dtype, mistake: float) -> None:
    x, w = x_and_w(dtype)
    graph = traced(lambda x, w: (x @ w,), x, w)
    with pytest.raises(VerificationError, match="other numbers"):
        right.verify(graph, graph.forward, lambda x, w: ((x @ w) * mistake,), [x, w])


@pytest.mark.parametrize(("less_exact", "is_right"), [(1.95, True), (2.6, False)])
def test_chance_comes_on_top_of_what_a_kernel_may_lose(less_exact: float, is_right: bool) -> None:
    """A kernel that is nearly twice less exact is right however the draws of 768 elements fall."""
    rng = torch.Generator().manual_seed(0)
    y = 1 + torch.rand(768, dtype=torch.float64, generator=rng)
    refused, tries = 0, 200
    for _ in range(tries):
        old, new = (torch.randn(768, dtype=torch.float64, generator=rng) for _ in range(2))
        try:
            right.compare([y], [(y + 1e-4 * old).float()], [(y + less_exact * 1e-4 * new).float()])
        except VerificationError:
            refused += 1
    assert refused <= 0.01 * tries if is_right else refused >= 0.99 * tries


def test_structure() -> None:
    old = torch.ones(2, 3)
    same = [old]
    for new in (
        torch.ones(3, 2),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(3, 2).t(),
        None,
    ):
        with pytest.raises(VerificationError, match="output 0"):
            right.compare(same, same, [new])
    with pytest.raises(VerificationError, match="number of outputs"):
        right.compare(same, same, [old, old])
    assert right.compare([old[:1]], [old[:1]], [torch.ones(3, 1).t()]).worst == 0, (
        "strides compare where size > 1"
    )
    with pytest.raises(VerificationError, match="output 0"):
        right.compare(same, same, [torch.ones(2, 6)[:, ::2]])


def test_integers_bit_for_bit() -> None:
    old = [torch.arange(5), torch.tensor([True, False]), 7]
    assert right.compare(old, old, [torch.arange(5), torch.tensor([True, False]), 7]).worst == 0
    for index, wrong in enumerate([torch.arange(5).flip(0), torch.tensor([True, True]), 8]):
        new = list(old)
        new[index] = wrong
        with pytest.raises(VerificationError, match=f"output {index}"):
            right.compare(old, old, new)


def test_nan_and_inf_must_be_in_the_same_places() -> None:
    nan, inf = float("nan"), float("inf")
    old = torch.tensor([1.0, nan, inf, -inf])
    assert right.compare([old.double()], [old], [old.clone()]).worst == 0
    for wrong in ([1.0, 2.0, inf, -inf], [nan, nan, inf, -inf], [1.0, nan, -inf, -inf], [1.0, nan, inf, 3.0]):
        with pytest.raises(VerificationError, match="NaN"):
            right.compare([old.double()], [old], [torch.tensor(wrong)])


def test_empty_outputs_pass() -> None:
    assert right.compare([torch.ones(0, 3)], [torch.ones(0, 3)], [torch.ones(0, 3)]).worst == 0


def test_failing_rewrite_is_a_verification_error() -> None:
    x, w = x_and_w()
    graph = traced(lambda x, w: (x @ w,), x, w)
    with pytest.raises(VerificationError, match="fails to run"):
        right.verify(graph, graph.forward, lambda x, w: (w @ x,), [x, w])


def test_inputs_that_the_original_refuses_are_not_the_rewrites_fault() -> None:
    table, ids = torch.randn(4, 3), torch.tensor([7])
    graph = traced(lambda t, i: (t[i],), table, torch.tensor([1]))
    with pytest.raises(UnsupportedError, match="original"):
        right.verify(graph, graph.forward, lambda t, i: (t[:1],), [table, ids])


def test_sharing_memory_must_stay_as_it_was() -> None:
    x = torch.randn(4)
    fresh = traced(lambda x: (x.clone(), x * 1), x)
    with pytest.raises(VerificationError, match="share memory"):
        right.verify(fresh, fresh.forward, lambda x: (x, x.clone()), [x])
    with pytest.raises(VerificationError, match="share memory"):
        right.verify(fresh, fresh.forward, lambda x: (lambda y: (y, y))(x.clone()), [x])
    view = traced(lambda x: (x.view(2, 2),), x)
    with pytest.raises(VerificationError, match="share memory"):
        right.verify(view, view.forward, lambda x: (x.view(2, 2).clone(),), [x])
    assert right.verify(view, view.forward, lambda x: (x.view(1, 4).view(2, 2),), [x]).worst == 0


def test_reference_is_float64_through_casts_and_constants() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.to(torch.bfloat16) + torch.full((3,), 1 / 3, dtype=torch.bfloat16)
        return y.to(torch.float32) / 3, (x > 0), x.argmax()

    x = torch.rand(5, 3)
    first, positive, index = right.float64_reference(traced(function, x), [x])
    assert first.dtype == torch.float64
    assert torch.equal(first, (x.double() + 1 / 3) / 3)
    assert torch.equal(positive, x > 0)
    assert torch.equal(index, x.argmax())


def test_a_rewrite_that_drops_a_zero_weight_is_refused() -> None:
    x, w, lora = torch.randn(4, 8), torch.randn(8, 8), torch.zeros(8, 8)
    graph = traced(lambda x, w, b: (x @ w + x @ b,), x, w, lora)
    inputs = random_inputs([x, w, lora], (1, 2), seed=0)
    with pytest.raises(VerificationError):
        right.verify(graph, graph.forward, lambda x, w, b: (x @ w,), inputs)


def test_the_largest_of_many_errors_may_be_some_times_their_mean_square() -> None:
    """Near the floor of the root mean square error, the largest one must not decide by itself."""
    reference = torch.randn(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    eps, scale = torch.finfo(torch.float32).eps, float(reference.abs().max())
    for factor, is_right in ((20, True), (40, False)):
        new = reference.clone()
        new[7] += factor * eps * scale
        outputs = ([reference], [reference.float()], [new.float()])
        if is_right:
            right.compare(*outputs)
        else:
            with pytest.raises(VerificationError, match="other numbers"):
                right.compare(*outputs)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8(dtype: torch.dtype) -> None:
    reference = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    old = reference.to(dtype)
    assert right.compare([reference], [old], [(reference * 1.001).to(dtype)]).worst <= 3
    with pytest.raises(VerificationError, match="other numbers"):
        right.compare([reference], [old], [(reference * 1.5).to(dtype)])


def confirmed(new: torch.Tensor, x: torch.Tensor) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x * 3,))
    right.confirm(graph, graph.forward, (new,), (x,), "a call")


def test_the_known_error_of_the_original_stands_in_for_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a rewritten graph may be from float64, and no further than a bound."""
    runs: list[Any] = []
    plain = right.float64_reference
    monkeypatch.setattr(right, "float64_reference", lambda *args: runs.append(args) or plain(*args))
    eps = torch.finfo(torch.float32).eps
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    graph = torch.fx.symbolic_trace(lambda x: (x * 3,))
    off = x * 3 + 6 * eps * float((x * 3).abs().max())
    right.confirm(graph, graph.forward, (off,), (x,), "a call", [Own(4 * eps, 8 * eps)])
    assert not runs
    with pytest.raises(VerificationError, match="a call"):
        right.confirm(graph, graph.forward, (x * 3.001,), (x,), "a call", [Own(0.1, 0.5)])
    assert len(runs) == 1


def test_the_known_error_of_a_part_stands_in_for_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel of small differences of large numbers: of the digits of float32, half are noise."""
    runs: list[Any] = []
    plain = right.float64_reference
    monkeypatch.setattr(right, "float64_reference", lambda *args: runs.append(args) or plain(*args))
    offset = torch.zeros(32)
    offset[5] = 1e3

    def cancelled(x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x + offset) - offset,)

    def wrong(x: torch.Tensor, error: float) -> tuple[torch.Tensor]:
        y = x.clone()
        y[:, 5] *= 1 + error
        return (y,)

    generator = torch.Generator().manual_seed(0)
    known, x = (torch.randn(64, 32, generator=generator) for _ in range(2))
    graph = traced(cancelled, x)
    own = right.verify(graph, graph.forward, cancelled, (known,)).own
    runs.clear()
    right.confirm(graph, graph.forward, wrong(x, 0.0), (x,), "a call", own)
    assert not runs
    stored = json.loads(json.dumps(errors_as_dict(1.0, own)))
    right.confirm(graph, graph.forward, wrong(x, 0.0), (x,), "a call", errors_from(stored)[1])
    assert not runs
    stored["parts"][0]["old"][0][3] = -1.0
    without_parts = errors_from(stored)[1]
    right.confirm(graph, graph.forward, wrong(x, 0.0), (x,), "a call", without_parts)
    assert len(runs) == 1
    for error, other in ((1e-3, x), (1e-4, x[:32])):  # too far; another shape, so that nothing is known
        with contextlib.suppress(VerificationError):
            right.confirm(graph, graph.forward, wrong(other, error), (other,), "a call", own)
    assert len(runs) == 3


def test_outputs_that_are_not_close_are_compared_in_float64() -> None:
    x = torch.randn(50)
    with pytest.raises(VerificationError, match="a call"):
        confirmed(x * 3.001, x)
    with pytest.raises(VerificationError, match="NaN"):
        confirmed(torch.where(x > 1, torch.nan, x * 3), x)
    with pytest.raises(VerificationError, match="NaN or infinite"):  # where the original overflows
        confirmed(torch.full_like(x, 5.0), torch.full_like(x, 2e38))
    with pytest.raises(VerificationError, match="strides"):
        confirmed((x * 3).reshape(5, 10), x)
    x[3] = torch.nan
    confirmed(x * 3, x)


def test_an_original_that_cannot_be_run_is_unsupported() -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x.view(3),))
    with pytest.raises(UnsupportedError, match="cannot be run"):
        right.confirm(graph, graph.forward, (torch.zeros(3),), (torch.zeros(4),), "a call")


def test_the_next_candidate_is_checked_for_weights_that_changed() -> None:
    x, w = x_and_w()
    check = GraphCheck(traced(lambda x, w: (x @ w,), x, w), lambda: [x, w], [1], "cpu", 0)
    for _ in range(2):
        check.verify(lambda x, w: (x @ w,), holds_for_all_weights=False, known=None)
        w.mul_(1.1)
    with pytest.raises(VerificationError):
        check.verify(lambda x, w: (x @ w * 1.1,), holds_for_all_weights=False, known=None)
