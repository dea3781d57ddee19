"""Capture: outputs of a graph other than fresh tensors."""

from __future__ import annotations

import torch
from torch import nn

from tests.capture.capture_calls import assert_captured_right, capture_function, capture_module


def test_outputs_none_int_repeated_and_input() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[object, ...]:
            y = x.exp()
            return y, None, 3, x, y, x.view(-1), y + 1

    record = capture_module(Model(), torch.randn(2, 3))
    names = [value.name for value in record.captured.model.graph.outputs]
    assert len(set(names)) == len(names)
    assert_captured_right(record)


def test_graph_that_returns_only_its_input() -> None:
    record = capture_function(lambda x: x, torch.randn(3))
    assert list(record.captured.model.graph.outputs) == []


def test_symbolic_size_as_output() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return x.relu(), x.shape[0] * 2

    record = capture_module(Model(), torch.randn(5, 3), dynamic=True)
    assert [value.name for value in record.captured.model.graph.outputs] == ["relu"]
    assert_captured_right(record)


def test_mutated_input_and_buffer_are_outputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            x.mul_(2)
            return x + self.count

    record = capture_module(Model(), torch.randn(3))
    assert len(record.captured.model.graph.outputs) == 3
    # The recorded inputs were updated after the graph had run.
    record.inputs = [torch.zeros(3), torch.ones(3)]
    record.outputs = tuple(record.captured.aten(*record.inputs))
    assert_captured_right(record)


def test_returned_copy_of_an_input_stays_a_copy() -> None:
    record = capture_function(lambda x: (x.clone(), x.clone().view(-1)), torch.randn(2, 3))
    assert record.op_types() == {"Identity": 2, "Reshape": 1}
