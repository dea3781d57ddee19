"""Which weight changes are detected: that table in docs/faq.md, including undetected ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torchrlopt
from tests.e2e import models
from tests.e2e.models import QUICK, RUNTIMES, ConvBranches, apply
from torchrlopt.compile import backend
from torchrlopt.compile.memory import MEMORY


def build(seed: int = 0) -> nn.Module:
    return models.build(ConvBranches, seed)


X = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(0))

Run = Callable[[nn.Module], torch.Tensor]


def compiled(executor: str, weights: str) -> Run:
    call = torch.compile(apply, backend="rlopt", options={**QUICK, "executor": executor, "weights": weights})

    def run(model: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return call(model, X)

    run(build())
    (report,) = backend.reports()
    assert report.kept == "rewritten"
    assert report.steps, "there is something to evaluate"
    return run


@pytest.fixture(scope="module", params=["eager", *RUNTIMES])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """One compilation for all tests of an executor."""
    torch._dynamo.reset()
    backend.reset()
    yield compiled(request.param, "check")
    torch._dynamo.reset()
    backend.reset()


def expect_right(run: Run, model: nn.Module) -> None:
    with torch.no_grad():
        torch.testing.assert_close(run(model), model(X), rtol=1e-4, atol=1e-5)


# ---- what is seen, besides what tests/property/test_weights.py draws. Each changes the weights
# once or more, and looks at the result after each.

Look = Callable[[], None]


def by_an_optimiser(model: nn.Module, look: Look) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        look()


def data_by_turns(model: nn.Module, look: Look) -> None:
    first, second = model.right.weight.data, -model.right.weight.data
    for _ in range(2):
        model.right.weight.data = second
        look()
        model.right.weight.data = first
        look()


def by_another_process(model: nn.Module, look: Look) -> None:
    model.share_memory()
    look()
    for parameter in model.parameters():
        mapped_again(parameter).mul_(-0.5)
    look()


def mapped_again(parameter: torch.Tensor) -> torch.Tensor:
    """The shared memory of a tensor as another process sees it: in another place."""
    storage: Any = parameter.untyped_storage()
    other = torch.UntypedStorage._new_shared_fd_cpu(*storage._share_fd_cpu_())  # type: ignore[attr-defined]
    assert other.data_ptr() != storage.data_ptr()
    return torch.empty(0, dtype=parameter.dtype).set_(other, 0, parameter.shape)


SEEN = [by_an_optimiser, data_by_turns, by_another_process]


@pytest.mark.parametrize("change", SEEN)
def test_seen(change: Callable[[nn.Module, Look], None], run: Run) -> None:
    model = build()
    results = [run(model)]

    def look() -> None:
        expect_right(run, model)
        results.append(run(model))

    with torch.no_grad():
        change(model, look)
    assert len(results) > 1
    assert not all(torch.equal(result, results[0]) for result in results), "nothing has changed"
    assert len(backend.reports()) == 1, "something was compiled again"


def test_instances_take_turns_and_nothing_is_evaluated_twice(run: Run) -> None:
    (lowered,) = (kept.lowered for kept in MEMORY.compiled.values())
    models = [build(seed) for seed in range(12)]
    before = lowered.num_evaluations
    for _ in range(3):
        for model in models:
            expect_right(run, model)
    assert lowered.num_evaluations == before + 12


# ---- writes that no version tells of


def data_in_place(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(-0.5)


def by_numpy(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.detach().numpy()[...] *= -0.5


def by_dlpack(model: nn.Module) -> None:
    for parameter in model.parameters():
        torch.from_dlpack(parameter.detach()).mul_(-0.5)


def by_storage(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.untyped_storage().copy_(parameter.detach().mul(-0.5).untyped_storage())


def merged_adapter(model: nn.Module) -> None:
    """As libraries of adapters do it."""
    generator = torch.Generator().manual_seed(0)
    weight = model.get_parameter("left.weight")
    down, up = (
        torch.randn(*size, generator=generator) for size in ((2, weight.shape[1]), (weight.shape[0], 2))
    )
    weight.data += up @ down


def one_element(model: nn.Module) -> None:
    """Not one of those that are looked at."""
    model.get_parameter("left.weight").data[1, 1] += 1000.0


WHOLE = [data_in_place, by_numpy, by_dlpack, by_storage, merged_adapter]


@pytest.mark.parametrize("change", WHOLE)
def test_writes_to_whole_weights_that_no_version_tells_of(run: Run, change: Callable[..., None]) -> None:
    model = build()
    expect_right(run, model)
    with torch.no_grad():
        change(model)
    expect_right(run, model)


@pytest.mark.parametrize("is_numpy", [False, True])
def test_memory_that_was_assigned_and_changes_later(run: Run, is_numpy: bool) -> None:
    model = build()
    assigned: list[Any] = [parameter.detach().clone() for parameter in model.parameters()]
    if is_numpy:
        assigned = [memory.numpy().copy() for memory in assigned]
    for parameter, memory in zip(model.parameters(), assigned, strict=True):
        parameter.data = torch.from_numpy(memory) if is_numpy else memory
    expect_right(run, model)
    for memory in assigned:
        memory *= -0.5
    expect_right(run, model)


@pytest.mark.usefixtures("fresh_dynamo")
def test_not_seen_and_what_to_do() -> None:
    run, model = compiled("eager", "check"), build()
    before = run(model)
    with torch.no_grad():
        one_element(model)
        assert not torch.allclose(model(X), before)
    assert torch.equal(run(model), before), "this is seen after all: docs/faq.md"
    torch.autograd.graph.increment_version(model.parameters())
    expect_right(run, model)


@pytest.mark.usefixtures("fresh_dynamo")
def test_live_weights_are_always_right() -> None:
    run = compiled("eager", "live")
    for change in (*WHOLE, one_element):
        model = build()
        expect_right(run, model)
        with torch.no_grad():
            change(model)
        expect_right(run, model)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_weight_without_memory_is_the_original_s_error() -> None:
    """As sharded training releases it between calls."""
    model = build()
    with torch.no_grad():
        fast = torchrlopt.optimise(model, X, measure=False, cache=False)
        for _ in range(4):
            fast(X)
        weight = model.get_parameter("left.weight")
        kept = weight.detach().clone()
        weight.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="setStorage"):
            fast(X)
        weight.untyped_storage().resize_(kept.nbytes)
        weight.copy_(kept)
        torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("fresh_dynamo")
def test_after_a_reset_everything_is_evaluated_again() -> None:
    run, model = compiled("eager", "check"), build()
    run(model)
    with torch.no_grad():
        one_element(model)
    torch._dynamo.reset()
    expect_right(run, model)
