"""Which weight changes are detected: every line of that table in docs/faq.md, including undetected ones."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.e2e import models
from tests.e2e.models import RUNTIMES, ConvBranches, apply
from torchrlopt.compile import backend
from torchrlopt.compile.memory import MEMORY
from torchrlopt.executors.weights.state import WeightsState


def build(seed: int = 0) -> nn.Module:
    return models.build(ConvBranches, seed)


X = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(0))

Run = Callable[[nn.Module], torch.Tensor]


def compiled(executor: str, weights: str) -> Run:
    options = {
        "executor": executor, "weights": weights, "on_error": "raise", "measure": False, "cache": False,
        "searcher": "greedy",
    }  # fmt: skip
    call = torch.compile(apply, backend="rlopt", options=options)

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


# ---- what is seen. Each changes the weights once or more, and has the result looked at after each.

Look = Callable[[], None]


def in_place(model: nn.Module, look: Look) -> None:
    for parameter in model.parameters():
        parameter.mul_(-0.5)
    look()
    model.norm.running_mean.add_(1.0)
    look()


def through_a_view(model: nn.Module, look: Look) -> None:
    model.left.weight.detach()[0].fill_(3.0)
    model.conv.weight.view(-1)[::2].mul_(2.0)
    look()


def by_an_optimiser(model: nn.Module, look: Look) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        look()


def loaded(model: nn.Module, look: Look) -> None:
    model.load_state_dict(build(1).state_dict())
    look()
    model.load_state_dict(copy.deepcopy(build(2).state_dict()), assign=True)
    look()


def other_data(model: nn.Module, look: Look) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * -0.5
    look()


def data_by_turns(model: nn.Module, look: Look) -> None:
    first, second = model.right.weight.data, -model.right.weight.data
    for _ in range(2):
        model.right.weight.data = second
        look()
        model.right.weight.data = first
        look()


def other_parameters(model: nn.Module, look: Look) -> None:
    model.left.weight = nn.Parameter(model.left.weight.detach() * 2)
    model.conv.weight = nn.Parameter(-model.conv.weight.detach())
    look()


def other_parameters_in_the_same_memory(model: nn.Module, look: Look) -> None:
    for _ in range(2):
        model.left.weight.data.mul_(2.0)  # by itself not seen
        model.left.weight = nn.Parameter(model.left.weight.data)
        look()


def converted_and_back(model: nn.Module, look: Look) -> None:
    model.half()
    model.float()
    look()


def from_a_vector(model: nn.Module, look: Look) -> None:
    vector = parameters_to_vector(model.parameters()) * 0.5
    vector_to_parameters(vector, model.parameters())
    look()
    vector.mul_(-1.5)
    look()
    vector[-1] += 1.0
    vector_to_parameters(vector, model.parameters())
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


def announced(model: nn.Module, look: Look) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(-0.5)
    torch.autograd.graph.increment_version([*model.parameters(), *model.buffers()])
    look()


SEEN = [
    in_place, through_a_view, by_an_optimiser, loaded, other_data, data_by_turns, other_parameters,
    other_parameters_in_the_same_memory, converted_and_back, from_a_vector, by_another_process, announced,
]  # fmt: skip


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


@pytest.mark.usefixtures("young_heap")
def test_instances_that_die_leave_nothing_behind(run: Run) -> None:
    for seed in range(3):
        model = build(seed)
        expect_right(run, model)
        storages = [weakref.ref(weight.untyped_storage()) for weight in model.parameters()]
        del model
        gc.collect()
        assert not any(storage() for storage in storages)


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (0, 2)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_words_lie_inside_a_weight(dtype: torch.dtype, shape: tuple[int, ...], is_transposed: bool) -> None:
    weight = torch.ones(shape, dtype=dtype)
    weight = weight.t() if is_transposed and len(shape) == 2 else weight
    state = WeightsState([weight])
    assert state.is_of([weight])
    weight.data.fill_(2)
    assert state.is_of([weight]) == (weight.nbytes < 4)


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
def test_after_a_reset_everything_is_evaluated_again() -> None:
    run, model = compiled("eager", "check"), build()
    run(model)
    with torch.no_grad():
        one_element(model)
    torch._dynamo.reset()
    expect_right(run, model)
