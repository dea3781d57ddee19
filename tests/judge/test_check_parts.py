"""Wrong numbers that are small compared with others in their tensor: torchrlopt/judge/."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from torchrlopt.capture.job import jobs_of
from torchrlopt.compile import attempt
from torchrlopt.compile.contestant import Contestant, lowered_from, written
from torchrlopt.errors import VerificationError
from torchrlopt.judge import right as check
from torchrlopt.judge.local import Local
from torchrlopt.judge.tolerances import TOLERANCES
from torchrlopt.options import Options
from torchrlopt.report import Journal

Fault = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What a fault makes of an input and the right output."""


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def conv(scales: dict[int, float], bias: float = 0.0) -> nn.Module:
    """A convolution of one pixel, some of whose output channels have other scales."""
    module = nn.Conv2d(4, 8, 1)
    with torch.no_grad():
        module.bias.fill_(bias)  # type: ignore[union-attr]
        for channel, scale in scales.items():
            module.weight[channel] *= scale
    return module


def with_mask() -> nn.Module:
    """A convolution that suppresses what a mask in channel 0 marks, as networks for point clouds do."""
    module = nn.Conv2d(8, 8, 3, padding=1)
    with torch.no_grad():
        module.weight[:, 0] = 0
        module.weight[:, 0, 1, 1] = -1e6
    return module


def masked_image() -> torch.Tensor:
    x = torch.randn(2, 8, 12, 12)
    x[:, 0] = 0
    x[:, 0, 8, 8] = 1
    return x


def changed(change: Callable[[torch.Tensor], object]) -> Fault:
    def fault(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        change(y)
        return y

    return fault


def of_squares(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Normalised by a variance that is the mean of squares less the square of the mean."""
    z = x.reshape(x.shape[0], groups, -1)
    mean = z.mean(-1, keepdim=True)
    variance = (z * z).mean(-1, keepdim=True) - mean * mean
    return ((z - mean) * torch.rsqrt(variance + 1e-5)).reshape(x.shape)


def flushed_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < -18, 0.0, torch.sigmoid(x))


IMAGE = functools.partial(torch.randn, 2, 4, 8, 8)
ROWS = functools.partial(torch.randn, 8, 32)

FAULTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], Fault]] = {
    "pixels beside masked ones": (with_mask, masked_image, changed(lambda y: y[:, :, 2, 2].mul_(3.1))),
    "a small channel": (lambda: conv({0: 1e6, 3: 1e-3}), IMAGE, changed(lambda y: y[:, 3].mul_(1.01))),
    "bias of a small channel": (
        lambda: conv(dict.fromkeys(range(8), 1e4) | {3: 1e-3}, 1e-3),
        IMAGE,
        changed(lambda y: y[:, 3].sub_(1e-3)),
    ),
    "a small row": (
        lambda: Function(lambda x: x * torch.logspace(6, -6, 8)[:, None]),
        ROWS,
        changed(lambda y: y[-1].zero_()),
    ),
    "tails of a sigmoid": (
        lambda: Function(torch.sigmoid),
        lambda: 10 * ROWS(),
        lambda x, y: flushed_sigmoid(x),
    ),
    "tails of a sigmoid, extreme inputs": (
        lambda: Function(torch.sigmoid),
        ROWS,
        lambda x, y: flushed_sigmoid(x),
    ),
    "infinite in tails": (
        lambda: Function(lambda x: torch.log(torch.sigmoid(x))),
        ROWS,
        lambda x, y: torch.log(flushed_sigmoid(x)),
    ),
    "tails of softplus": (lambda: Function(F.softplus), ROWS, lambda x, y: y + 7.6e-6 * (x < -15)),
    "variance of groups": (
        lambda: nn.GroupNorm(4, 16, affine=False),
        lambda: torch.randn(2, 16, 8, 8),
        lambda x, y: of_squares(x, 4),
    ),
    "variance of rows": (
        lambda: nn.LayerNorm(64, elementwise_affine=False),
        lambda: torch.randn(2, 16, 64),
        lambda x, y: of_squares(x.reshape(32, 64), 1).reshape(x.shape),
    ),
    "an outlier in all rows": (
        lambda: nn.Linear(32, 32),
        lambda: torch.randn(2, 8, 32),
        lambda x, y: y + 1e-7 * x.abs().amax((-1, -2), keepdim=True),
    ),
    "tiny numbers": (lambda: nn.Tanh(), ROWS, lambda x, y: torch.where(y.abs() < 1e-7, 0.0, y)),
    "a small channel in float64": (
        lambda: conv({3: 1e-6}).double(),
        lambda: IMAGE().double(),
        changed(lambda y: y[:, 3].mul_(1 + 1e-5)),
    ),
}
"""None of them was refused when only whole tensors were compared, on usual inputs."""


class Rewritten:
    """Stands in for what an executor makes of a graph: the original with a fault."""

    parts: tuple[str, ...] = ()

    def __init__(self, contestant: Contestant, fault: Fault) -> None:
        self._contestant, self._fault = contestant, fault

    def __call__(self, *inputs: Any) -> Sequence[torch.Tensor]:
        traced = self._contestant.job.traced
        (x,) = (each for at, each in enumerate(inputs) if at not in traced.static)
        return (self._fault(x, traced.aten.forward(*inputs)[0]),)


def attempted(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], nn.Module],
    draw: Callable[[], torch.Tensor],
    fault: Fault,
) -> None:
    torch.manual_seed(0)
    module = make().eval().requires_grad_(False)
    (job,) = jobs_of(module, (draw(),))
    contestant = Contestant(job, job.traced.aten.forward, job.traced.own_inputs)
    monkeypatch.setattr(attempt, "lowered_from", lambda *_: Rewritten(contestant, fault))
    attempt.attempt(
        contestant, Options(executor="eager", measure=False, cache=False, searcher="none"), Journal()
    )


def test_what_is_packed_for_weights_with_noise_goes_before_the_users_are_packed() -> None:
    """Two sets of packed weights at a time would be the peak of a first call."""
    module = nn.Linear(64, 64).eval().requires_grad_(False)
    module.bias.zero_()
    (job,) = jobs_of(module, (torch.randn(64, 64),))
    contestant = Contestant(job, job.traced.aten.forward, job.traced.own_inputs)
    graph = job.program.graph
    lowered = lowered_from(written(graph, job), graph, contestant, Options(executor="eager"))
    contestant.check.verify(lowered, holds_for_all_weights=True, known=None)
    assert lowered.num_evaluations == 2
    assert len(lowered.cache._known) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_among_small_numbers_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make, draw, fault = FAULTS[name]
    with pytest.raises(VerificationError, match=r"other numbers|infinite"):
        attempted(monkeypatch, make, draw, fault)


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_right_is_not(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Rounded otherwise than the original's in each of its numbers."""
    make, draw, _ = FAULTS[name]
    eps = 2.0**-53 if "float64" in name else 2.0**-24
    rng = torch.Generator().manual_seed(0)
    attempted(
        monkeypatch,
        make,
        draw,
        lambda x, y: y * (1 + eps * torch.randn(y.shape, generator=rng, dtype=torch.float64)).to(y.dtype),
    )


def standard(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor, is_extreme: bool = False
) -> check.Standard:
    graph = make_fx(lambda *inputs: (function(*inputs),))(*inputs)
    return check.standard(graph, graph.forward, inputs, is_extreme=is_extreme)


def compared(known: check.Standard, new: torch.Tensor, is_extreme: bool = False) -> None:
    check.compare(
        known.reference, known.original, (new,), "outputs", known.work, known.conditioning, is_extreme
    )


@pytest.mark.parametrize(
    ("original", "rewritten"),
    [
        (lambda x, y: x * (y - x), lambda x, y: x * y - x * x),
        (lambda x, y: (x + y) - y, lambda x, y: x + (y - y)),
        (lambda x, y: F.layer_norm(x + 1000, [32]), lambda x, y: F.layer_norm((x + 500) + 500, [32])),
        (lambda x, y: torch.relu(x @ y.t()), lambda x, y: torch.relu((x.double() @ y.t().double()).float())),
        (lambda x, y: F.layer_norm(x * 0 + 0.1, [32]), lambda x, y: (x * 0 + 0.1 - 0.1) * 316.2),
    ],
    ids=["distributed", "exact", "an offset", "relu", "constant rows"],
)
def test_what_is_left_where_terms_cancel_is_judged_by_the_terms(
    original: Callable[..., torch.Tensor], rewritten: Callable[..., torch.Tensor]
) -> None:
    """One of the two ways may be exact by itself, or lose more than the other where terms cancel."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(64, 32, generator=rng)
    y = x * (1 + 10.0 ** (-torch.rand(64, 1, generator=rng) * 7) * torch.randn(64, 32, generator=rng))
    for one, other in ((original, rewritten), (rewritten, original)):
        compared(standard(one, x, y), other(x, y), is_extreme=True)


def test_equal_numbers_may_come_in_any_order() -> None:
    """Of extreme inputs, whose rows may be constant; and only where rounding turns them over."""
    x = torch.ones(4, 8) / 3
    x[1] = torch.arange(8.0)
    known = standard(lambda x: (x * 3).argmax(-1), x)
    right, wrong = torch.tensor([5, 7, 6, 2]), torch.tensor([5, 6, 6, 2])
    compared(known, right, is_extreme=True)
    with pytest.raises(VerificationError, match="1 differ"):
        compared(known, wrong, is_extreme=True)
    with pytest.raises(VerificationError, match="3 differ"):
        compared(known, right)


def test_what_underflows_to_0_may_come_in_any_order() -> None:
    """Of a softmax whose logits are extreme; what is left above 0 keeps its place."""
    x = -100.0 * torch.arange(6.0)[None]
    known = standard(lambda x: x.softmax(-1).argsort(-1, descending=True), x, is_extreme=True)
    compared(known, torch.tensor([[0, 5, 4, 2, 3, 1]]), is_extreme=True)
    with pytest.raises(VerificationError, match="1 differ"):
        compared(known, torch.tensor([[1, 0, 2, 3, 4, 5]]), is_extreme=True)


def test_later_weights_are_compared_part_by_part() -> None:
    """Close as a whole, and wrong in a small channel."""
    x, scale = torch.randn(2, 4, 8, 8), torch.tensor([1e6, 1.0, 1.0, 1e-3])[:, None, None]
    graph = make_fx(lambda x, scale: (x * scale,))(x, scale)
    right = x * scale
    wrong = right.clone()
    wrong[:, 3] *= 1.01
    check.confirm(graph, graph.forward, (right,), (x, scale), "a call")
    with pytest.raises(VerificationError, match=r"a call, output 0, \[.*3.*\]"):
        check.confirm(graph, graph.forward, (wrong,), (x, scale), "a call")


def test_an_error_that_subnormal_numbers_explain_passes() -> None:
    x = torch.full((4, 8), 1e-42)
    tolerance = TOLERANCES[torch.float32]
    for error, is_right in ((1e-42, True), (1e-36, False)):
        known = Local(x.shape, x.device)
        known.add((slice(0, 4), slice(0, 8)), x.double(), x.double() * 0, x.double() * 0 + error)
        assert (known.excess(tolerance) is None) is is_right


def test_the_message_names_the_part() -> None:
    y = torch.ones(4, 8, dtype=torch.float64)
    known = Local(y.shape, y.device)
    error = y * 0
    error[2] = 1e-3
    known.add((slice(0, 4), slice(0, 8)), y, y * 0, error)
    found = known.excess(TOLERANCES[torch.float32])
    assert found is not None
    assert (found.part, found.rmse) == ("[2, :]", pytest.approx(1e-3))
    assert math.isclose(found.limit, TOLERANCES[torch.float32].local_floor)
