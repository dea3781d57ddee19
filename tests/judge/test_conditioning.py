"""Errors of float64 outputs are measured relative to their own size: torchrlopt/judge/conditioning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchrlopt.errors import VerificationError
from torchrlopt.judge import right
from torchrlopt.judge.conditioning import Carried, Conditioning
from torchrlopt.judge.float64 import InOneDtype, float64_reference

X = torch.randn(16, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def traced(function: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    graph: torch.fx.GraphModule = make_fx(function)(*inputs)
    return graph


def verified(original: Callable[..., Any], rewritten: Callable[..., Any]) -> None:
    """Both ways to ask, which have to agree."""
    graph = traced(original, X)
    right.verify(graph, graph.forward, rewritten, [X])
    right.confirm(graph, graph.forward, rewritten(X), [X], "a call")


@pytest.mark.parametrize(
    ("original", "rewritten"),
    [
        (lambda x: (x * 0.0,), lambda x: (x * 0.0 + 1e-9,)),
        (lambda x: (x * 1e-12,), lambda x: (x * 1e-12 + 1e-13,)),
        (lambda x: (torch.relu(-1 - x * x),), lambda x: (torch.relu(-1 - x * x) + 1e-9,)),
        (lambda x: (x[:1] * 1e-12,), lambda x: (x[:1] * 1.0001e-12,)),
        (lambda x: (x * 1e100 * 1e-110,), lambda x: (x * 1e-10 + 1e-8,)),
    ],
    ids=["zeros", "tiny", "zeros of relu", "a factor", "more than float32 holds"],
)
def test_an_error_is_no_smaller_for_a_small_output(
    original: Callable[..., Any], rewritten: Callable[..., Any]
) -> None:
    graph = traced(original, X)
    with pytest.raises(VerificationError, match="other numbers"):
        right.verify(graph, graph.forward, rewritten, [X])
    with pytest.raises(VerificationError, match="other numbers"):
        right.confirm(graph, graph.forward, rewritten(X), [X], "a call")


def test_what_is_left_where_sums_cancel_passes() -> None:
    """Both are made of rounding errors and of nothing else."""
    halves = lambda x: x[:, :32].sum(-1) + x[:, 32:].sum(-1)  # noqa: E731
    verified(lambda x: (1e3 * (x.sum(-1) - x.flip(-1).sum(-1)),), lambda x: (1e3 * (x.sum(-1) - halves(x)),))
    verified(lambda x: (torch.softmax(x, -1).sum(-1) - 1,), lambda x: (halves(torch.softmax(x, -1)) - 1,))


def test_nothing_that_was_refused_passes() -> None:
    """However large the rounding errors are, what counts of them ends at the floor for numbers around 1."""
    carried = lambda x: (1e12 * (x * 3 - x - x - x),)  # noqa: E731
    graph = traced(carried, X)
    with pytest.raises(VerificationError, match="other numbers"):
        right.verify(graph, graph.forward, lambda x: (carried(x)[0] + 1e-6,), [X])


@pytest.mark.parametrize(("off", "is_right"), [(4.0, True), (400.0, False)])
def test_the_largest_error_is_measured_by_what_rounding_does(off: float, is_right: bool) -> None:
    """The original happens to be exact where an exponential is largest: its rounding error is no measure."""
    x = torch.linspace(-1, 0.5, 4096)
    x[0] = 0.78125  # times 20 is exact
    graph = traced(lambda x: (torch.exp(20 * x),), x)
    ulp = 2.0**-20  # of numbers from 8 to 16
    new = lambda x: (torch.exp(20 * x + off * ulp * (x == 0.78125)),)  # noqa: E731
    if is_right:
        assert not bool((new(x)[0] == graph(x)[0]).all())
        right.verify(graph, graph.forward, new, [x])
    else:
        with pytest.raises(VerificationError, match="maximum error"):
            right.verify(graph, graph.forward, new, [x])


@pytest.mark.parametrize("scale", [3, 1e100])
def test_noise_has_the_size_of_rounding(scale: float) -> None:
    known = Conditioning(traced(lambda x: (x * scale,), X), [X]).carried(0, X * scale)
    assert 0 < known.rmse <= known.largest < 1e-14 * scale
    narrow = X.to(torch.bfloat16)
    known = Conditioning(traced(lambda x: (x * 2,), narrow), [narrow]).carried(0, narrow.double() * 2)
    eps = torch.finfo(torch.bfloat16).eps
    assert 0.2 * eps < known.rmse / float((narrow.double() * 2).square().mean().sqrt()) < eps


def test_a_number_has_one_noise() -> None:
    """As one that two operators read: nothing is left of it here, whatever it was rounded to."""
    x = X.float()
    known = Conditioning(traced(lambda x: ((x * 3) - (x * 3) * 1, x - x), x), [x])
    assert known.carried(1, torch.zeros_like(X)) == Carried()
    assert 0 < known.carried(0, torch.zeros_like(X)).rmse < 1e-6


def test_opposite_noise_sees_both_sides_of_an_edge() -> None:
    """Behind a relu errors show on one side only."""
    x = torch.zeros(1000) + 1.0
    known = Conditioning(traced(lambda x: (torch.relu(x - 1),), x), [x])
    plus, minus = next(known.pairs(0))
    assert bool(((plus > 0) | (minus > 0)).float().mean() > 0.9)


def test_complex_numbers_are_widened_too() -> None:
    spectrum = lambda x: (torch.view_as_real(torch.fft.rfft(x) * 3j),)  # noqa: E731
    x = X.to(torch.float32)
    graph = traced(spectrum, x)
    (wide,), (narrow,) = float64_reference(graph, [x]), InOneDtype(graph, torch.float32).run(x)
    torch.testing.assert_close(wide, spectrum(x.double())[0], rtol=1e-14, atol=1e-14)
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    given = torch.complex(x, x.flip(0))
    product = traced(lambda z: (z @ z.t(),), given)
    (wide,) = float64_reference(product, [given])
    torch.testing.assert_close(wide, given.to(torch.complex128) @ given.t().to(torch.complex128))


def test_infinities_stay_what_they_are() -> None:
    """A mask of -inf must not make all that meets it NaN, and the estimate nothing."""
    mask = torch.zeros(64).masked_fill(torch.arange(64) > 50, -torch.inf)
    graph = traced(lambda x: (torch.softmax(x + mask * 2, -1),), X.float())
    for noisy in next(Conditioning(graph, [X.float()]).pairs(0)):
        assert noisy.isfinite().all()
