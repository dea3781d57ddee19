"""Graph functions whose code is generated lazily: torchrlopt/executors/lowering/lazy_code.py."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from torchrlopt.executors.lowering import lazy_code
from torchrlopt.executors.lowering.lazy_code import lazy_module, seldom_called


def module_of(target: object) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(target, (x, x)),))  # type: ignore[arg-type]  # a function
    return lazy_module(torch.nn.Module(), graph)


def test_the_first_call_generates_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    generated = []
    plain = lazy_code.forward_of
    monkeypatch.setattr(lazy_code, "forward_of", lambda module: (generated.append(module), plain(module))[1])
    run, x = seldom_called(module_of(torch.add)), torch.ones(3)
    assert torch.equal(run(x)[0], x + x)
    assert generated == []
    assert torch.equal(run(x)[0], x + x)
    assert len(generated) == 1


def test_errors_are_told_as_they_are() -> None:
    def fail(*_: torch.Tensor) -> torch.Tensor:
        raise ValueError("these weights")

    with pytest.raises(ValueError, match=r"^these weights$"):
        seldom_called(module_of(fail))(torch.ones(3))
