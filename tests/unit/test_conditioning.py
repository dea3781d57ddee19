"""Errors of float64 outputs are measured by the output's own size: torchrlopt/compile/conditioning.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchrlopt.compile import check, conditioning
from torchrlopt.compile.conditioning import Carried, Conditioning
from torchrlopt.compile.float64 import float32_run, float64_reference
from torchrlopt.errors import VerificationError

X = torch.randn(16, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def traced(function: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    graph: torch.fx.GraphModule = make_fx(function)(*inputs)
    return graph


def verified(original: Callable[..., Any], rewritten: Callable[..., Any]) -> None:
    """Both ways to ask, which have to agree."""
    graph = traced(original, X)
    check.verify(graph, graph.forward, rewritten, [X])
    check.confirm(graph, graph.forward, rewritten(X), [X], "a call")


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
        check.verify(graph, graph.forward, rewritten, [X])
    with pytest.raises(VerificationError, match="other numbers"):
        check.confirm(graph, graph.forward, rewritten(X), [X], "a call")


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
        check.verify(graph, graph.forward, lambda x: (carried(x)[0] + 1e-6,), [X])


def test_float32_runs_only_where_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditioning, "float32_run", lambda *_: pytest.fail("asked for"))
    verified(lambda x: (x @ x.t(),), lambda x: (x[:, :32] @ x[:, :32].t() + x[:, 32:] @ x[:, 32:].t(),))


def test_what_float32_cannot_tell_is_measured_by_its_size() -> None:
    huge = Conditioning(traced(lambda x: (x * 1e200,), X), [X])
    assert huge.carried(0, X * 1e200) == Carried()

    def refuses(x: torch.Tensor) -> Any:
        raise RuntimeError("no kernel")

    assert Conditioning(refuses, [X]).carried(0, X) == Carried()  # type: ignore[arg-type]  # no graph at all
    known = Conditioning(traced(lambda x: (x * 3,), X), [X]).carried(0, X * 3)
    assert 0 < known.rmse <= known.largest < 1e-14


def test_complex_numbers_are_widened_too() -> None:
    spectrum = lambda x: (torch.view_as_real(torch.fft.rfft(x) * 3j),)  # noqa: E731
    x = X.to(torch.float32)
    graph = traced(spectrum, x)
    (wide,), (narrow,) = float64_reference(graph, [x]), float32_run(graph, [X])
    torch.testing.assert_close(wide, spectrum(x.double())[0], rtol=1e-14, atol=1e-14)
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    given = torch.complex(x, x.flip(0))
    product = traced(lambda z: (z @ z.t(),), given)
    (wide,) = float64_reference(product, [given])
    torch.testing.assert_close(wide, given.to(torch.complex128) @ given.t().to(torch.complex128))
