"""Numbers computed in low precision are checked as such, whatever dtype they are returned in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from torchrlopt import optimise
from torchrlopt.errors import VerificationError
from torchrlopt.judge import right
from torchrlopt.judge.right import computed_in

X = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], torch.dtype | None]] = {
    "cast up": (lambda x: (x @ x.t()).double(), torch.float32),
    "only cast": (lambda x: x[1:].t().double() @ x[1:].double(), torch.float64),
    "cast down and up": (lambda x: x.double().exp().float().double() + 1, torch.float32),
    "half": (lambda x: (x.half() * 2).float() + x, torch.float16),
    "integers": (lambda x: x.long() + 1, None),
    "chosen by a flag": (lambda x: x.double().masked_fill((x * 2).sin() > 0, 1.0) * 2, torch.float64),
    "moved": (lambda x: x.t()[2:], None),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_dtype_with_the_fewest_digits(name: str) -> None:
    function, expected = FUNCTIONS[name]
    graph = make_fx(lambda x: (function(x), 3), tracing_mode="fake")(X)
    assert computed_in(graph) == (expected, None)


class Widened(nn.Module):
    """Works in float32, and returns float64."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(512, 512) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        both = torch.relu(torch.cat([self.a(x), self.b(x)], 1))
        return (self.c(both[:, :512]) * 3).double()


@pytest.mark.parametrize("seed", range(3))
def test_float64_outputs_of_float32_work_are_no_false_alarm(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Widened().eval(), torch.randn(8, 512)
    fast = optimise(model, x, measure=False, cache=False, searcher="greedy", on_error="raise")
    assert fast.report.kept == "rewritten"
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("work", [torch.float32, torch.float64])
def test_wrong_numbers_are_refused_all_the_same(work: torch.dtype) -> None:
    graph = make_fx(lambda x: ((x.to(work) @ x.t().to(work)).double(),), tracing_mode="fake")(X)
    mistake = 1 + (1e-4 if work is torch.float32 else 3e-7)

    def wrong(x: Tensor) -> tuple[Tensor]:
        return ((x.to(work) @ x.t().to(work)).double() * mistake,)

    with pytest.raises(VerificationError, match="other numbers"):
        right.verify(graph, graph.forward, wrong, [X])
