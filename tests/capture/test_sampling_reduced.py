"""Check inputs with a smaller batch: torchrlopt/capture/sampling.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchrlopt.capture.sampling import reduced_inputs
from torchrlopt.capture.trace import Traced, trace
from torchrlopt.compile.memory import MEMORY
from torchrlopt.judge import right

LINEAR = torch.nn.Linear(8, 4).eval()


def traced(function: Callable[..., Any], *args: torch.Tensor) -> Traced:
    """The graph of a call in which all first dimensions are free."""
    found: list[Traced] = []

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        trace(gm, examples, found.append, pytest.fail)
        return gm.forward

    for arg in args:
        torch._dynamo.mark_dynamic(arg, 0)
    with torch.no_grad():
        torch.compile(function, backend=backend)(*args)
    return found[-1]


def reduced(one: Traced) -> list[Any] | None:
    return reduced_inputs(one.aten, one.inputs, one.static)


def rows_of(inputs: list[Any]) -> set[int]:
    """First sizes of what is no weight of `LINEAR`, and the numbers."""
    own = [*LINEAR.parameters()]
    tensors = [x for x in inputs if isinstance(x, torch.Tensor) and not any(x is each for each in own)]
    return {x.shape[0] for x in tensors} | {x for x in inputs if isinstance(x, int)}


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_free_batch_is_cut() -> None:
    one = traced(lambda x: LINEAR(x).relu(), torch.randn(64, 8))
    found = reduced(one)
    assert found is not None
    assert rows_of(found) == {4}
    assert one.aten.forward(*found)[0].shape == (4, 4)


@pytest.mark.usefixtures("fresh_dynamo")
def test_strides_stay_those_of_the_graph() -> None:
    one = traced(lambda x: x * 2, torch.randn(8, 64).t())
    (part,) = (each for each in reduced(one) or [] if isinstance(each, torch.Tensor))
    assert (part.shape, part.stride()) == ((4, 8), (1, 4))
    whole = next(each for each in one.inputs if isinstance(each, torch.Tensor))
    assert torch.equal(part, whole[:4])


@pytest.mark.usefixtures("fresh_dynamo")
def test_what_guards_ask_of_a_size_is_kept_to() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 8, 8) * 2 if x.shape[0] % 8 == 0 and x.shape[0] > 10 else x

    found = reduced(traced(function, torch.randn(64, 8)))
    assert found is not None
    assert rows_of(found) == {16}


@pytest.mark.usefixtures("fresh_dynamo")
def test_where_there_is_nothing_to_cut() -> None:
    assert reduced(traced(lambda x: x * 2, torch.randn(3, 8))) is None  # few rows
    with torch.no_grad():
        torch._dynamo.reset()
        found: list[Traced] = []

        def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
            trace(gm, examples, found.append, pytest.fail)
            return gm.forward

        torch.compile(lambda x: x * 2, backend=backend, dynamic=False)(torch.randn(64, 8))
    assert reduced(found[0]) is None  # no free size


@pytest.mark.usefixtures("fresh_dynamo")
def test_float64_runs_on_few_rows_and_the_rest_on_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    plain = right.float64_reference

    def counted(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        outputs = plain(graph, inputs)
        rows.append(outputs[0].shape[0])
        return outputs

    monkeypatch.setattr(right, "float64_reference", counted)
    options = {"on_error": "raise", "min_gain": -10.0, "measure": False, "cache": False}
    x = torch.randn(256, 8)
    torch._dynamo.mark_dynamic(x, 0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="rlopt", options=options)(x), model(x))
    assert rows == [4, 4]  # usual inputs, and extreme ones
    (kept,) = MEMORY.compiled.values()
    assert kept.report.checked_sets == 1
