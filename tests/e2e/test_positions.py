"""Out-of-range positions, and division by 0, behave in every executor as in eager PyTorch."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.crosses import nightly_but
from tests.e2e.models import RUNTIMES, STRICT
from torchrlopt import optimise
from torchrlopt.api.optimised import Optimised

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ROWS, WIDTH = 6, 8


class Reading(nn.Module):
    """A function of what a linear gives and of positions.

    Args:
        function: what is computed.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, at: Tensor) -> Any:
        return self.function(self.linear(x), at)


ZEROS = torch.zeros(ROWS, WIDTH)

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "embedding": lambda y, at: F.embedding(at, y),
    "embedding_bag": lambda y, at: F.embedding_bag(at, y),
    "index_select": lambda y, at: y.index_select(0, at[:, 0]),
    "index_select, after a shift": lambda y, at: y.index_select(0, at[:, 0] - 1 + 1),
    "gather": lambda y, at: y.gather(0, at),
    "take_along_dim": lambda y, at: torch.take_along_dim(y, at, 0),
    "take": lambda y, at: y.take(at),
    "index": lambda y, at: y[at[:, 0]],
    "index of two axes": lambda y, at: y[at[:, 0], at[:, 1]],
    "index after clamp": lambda y, at: y[at[:, 0].clamp(0, ROWS - 1)],
    "index after clamp from below": lambda y, at: y[at[:, 0].clamp(min=0)],
    "index of the largest": lambda y, at: y[y.argmax(0) % ROWS] + at[0],
    "index of a quotient": lambda y, at: y[torch.div(at[:, 0], 2, rounding_mode="trunc")],
    "index of a product": lambda y, at: y[at[:, 0] * at[:, 0]],
    "index of a cast": lambda y, at: y[(at[:, 0].float() * 0.5).long()],
    "scatter": lambda y, at: ZEROS.scatter(0, at, y),
    "scatter_add": lambda y, at: ZEROS.scatter_add(0, at, y),
    "scatter_reduce": lambda y, at: ZEROS.scatter_reduce(0, at, y, "amax"),
    "index_put": lambda y, at: ZEROS.index_put((at[:, 0],), y, accumulate=True),
    "index_add": lambda y, at: ZEROS.index_add(0, at[:, 0], y),
    "one_hot": lambda y, at: F.one_hot(at[:, 0], ROWS).float() @ y,
    "cross_entropy": lambda y, at: F.cross_entropy(y, at[:, 0]),
    "nll_loss": lambda y, at: F.nll_loss(y, at[:, 0], reduction="none"),
    "floor division": lambda y, at: (y, 7 // at),
    "truncated division": lambda y, at: (y, torch.div(at + 2, at, rounding_mode="trunc")),
    "remainder": lambda y, at: (y, 7 % at),
}
POSITIONS = (-1, -100, ROWS, 2**32 + 1, 0)


def outcome(call: Callable[..., Any], x: Tensor, at: Tensor) -> Any:
    """Results, or the kind of error."""
    try:
        with torch.no_grad():
            return call(x, at)
    except (IndexError, RuntimeError) as error:
        return type(error)


def run_of(model: nn.Module, executor: str, *inputs: Tensor) -> Optimised:
    options = {**STRICT, "on_error": "fallback", "cache": False, "executor": executor}
    return optimise(model, inputs, **options)


@pytest.mark.parametrize(
    ("executor", "name"),
    nightly_but(
        # A runtime takes what is in range only; of the kinds of readers and writers it sees one each.
        [*(("eager", name) for name in FUNCTIONS),
         *((executor, name) for executor in RUNTIMES[:1]
           for name in ("embedding", "gather", "index of two axes", "index after clamp", "scatter_add",
                        "index_put", "cross_entropy", "floor division", "remainder"))],
        itertools.product(["eager", *RUNTIMES], FUNCTIONS),
    ),
)  # fmt: skip
def test_positions_out_of_range_are_those_of_pytorch(executor: str, name: str) -> None:
    torch.manual_seed(0)
    model = Reading(FUNCTIONS[name]).eval()
    x, good = torch.randn(ROWS, WIDTH), torch.randint(1, 3, (ROWS, WIDTH))
    run = run_of(model, executor, x, good)
    for number in POSITIONS:
        for at in (good.clone().fill_(number), good.index_fill(0, torch.tensor([2]), number)):
            expected, found = outcome(model, x, at), outcome(run, x, at)
            if isinstance(expected, type):
                assert found is expected
            else:
                torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(outcome(run, x, good), outcome(model, x, good))


READERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda y, at: F.embedding(at, y),
    "index_select": lambda y, at: y.index_select(0, at),
    "index": lambda y, at: y[at],
}


@pytest.mark.parametrize("executor", nightly_but(["eager", *RUNTIMES[:1]], ["eager", *RUNTIMES]))
@pytest.mark.parametrize("name", READERS)
def test_rows_that_are_read_before_a_product_is_computed(name: str, executor: str) -> None:
    """Fewer rows are read than there are, so that plans read them first: another call than the original's."""
    model, x = Reading(READERS[name]).eval(), torch.randn(ROWS, WIDTH)
    run = run_of(model, executor, x, torch.tensor([0, 1]))
    assert run.report.kept == "rewritten"
    for number in (-1, -ROWS, -ROWS - 1, ROWS, 3):
        at = torch.tensor([number, 1])
        expected, found = outcome(model, x, at), outcome(run, x, at)
        if isinstance(expected, type):
            assert found is expected
        else:
            torch.testing.assert_close(found, expected)


class Classifier(nn.Module):
    """Token and position embeddings; positions are a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(10, WIDTH), nn.Embedding(16, WIDTH)
        self.register_buffer("at", torch.arange(16)[None])
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.tokens(ids) + self.places(self.at[:, : ids.shape[1]])
        found: Tensor = self.linear(torch.relu(embedded))
        return found


@pytest.mark.parametrize("executor", RUNTIMES)
def test_a_runtime_runs_what_reads_in_range(executor: str) -> None:
    """Both embeddings stay in the runtime; a buffer out of range is seen as well."""
    model, ids = Classifier().eval(), torch.randint(0, 10, (2, 7))
    run = run_of(model, executor, ids)
    assert run.report.kept == "rewritten"
    assert not run.report.parts
    with torch.no_grad():
        torch.testing.assert_close(run(ids), model(ids))
        for wrong in (-1, -100, 10, 2**32 + 3):
            with pytest.raises(IndexError, match="out of range"):
                run(ids.index_fill(1, torch.tensor([3]), wrong))
            torch.testing.assert_close(run(ids), model(ids))
        model.at[0, 3] = -1
        for _ in range(3):  # new weights run as the original does at first
            with pytest.raises(IndexError, match="out of range"):
                run(ids)
        model.at[0, 3] = 3
        torch.testing.assert_close(run(ids), model(ids))


OVERFLOW = """
import torch
from tests.e2e.test_positions import Reading, run_of
for name, function in (("//", lambda y, at: (y, at[0] // at[1])), ("%", lambda y, at: (y, at[0] % at[1]))):
    model, x = Reading(function).eval(), torch.randn(4, 8)
    run = run_of(model, "{executor}", x, torch.tensor([[4, 5], [1, 2]]))
    least = torch.tensor([[-(2**63), 5], [-1, 2]])
    with torch.no_grad():
        assert torch.equal(run(x, least)[1], model(x, least)[1]), name
"""


@pytest.mark.parametrize("executor", nightly_but(RUNTIMES[:1], RUNTIMES))
def test_a_quotient_that_overflows_ends_no_program(executor: str) -> None:
    """The processor raises a signal for it; in a process of its own, as nothing could catch that here."""
    command = [sys.executable, "-c", OVERFLOW.format(executor=executor)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("executor", RUNTIMES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_numbers_of_8_bits_wrap(dtype: torch.dtype, executor: str) -> None:
    """Where the example's numbers do not, so that no check sees it: the difference of two images."""
    convolution = nn.Conv2d(3, 8, 3, padding=1)

    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = convolution

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.convolution((a - b).float() + (a.abs() * b).float()))

    model = Difference().eval()
    small, large = torch.ones(1, 3, 16, 16, dtype=dtype), torch.full((1, 3, 16, 16), 120, dtype=dtype)
    fast = optimise(model, executor=executor, measure=False, cache=False, min_gain=-10.0)
    with torch.no_grad():
        for a, b in ((large, small), (small, large), (-small, large)):
            torch.testing.assert_close(fast(a, b), model(a, b), rtol=1e-4, atol=1e-4)
