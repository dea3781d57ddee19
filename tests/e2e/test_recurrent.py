"""Models with PyTorch's recurrent layers, which Dynamo does not trace: users are warned."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import torchrlopt
from torchrlopt.compile.fallback import WARNINGS


class Head(nn.Module):
    """Two linears of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, y: Tensor) -> Tensor:
        return self.first(y[:, -1]) + self.second(y[:, 0])


class Tagger(nn.Module):
    """Convolution, recurrent layer, head."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(16, 16, 3, padding=1), nn.BatchNorm1d(16)
        self.layer, self.head = layer(16, 16, batch_first=True), Head()

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layer(torch.relu(self.norm(self.conv(x))).transpose(1, 2))
        found: Tensor = self.head(y)
        return found


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_layer_alone_is_told(layer: type[nn.RNNBase], caplog: pytest.LogCaptureFixture) -> None:
    WARNINGS.clear()
    model, x = layer(16, 16, batch_first=True).eval(), torch.randn(2, 5, 16)
    with caplog.at_level(logging.WARNING, "torchrlopt"), torch.no_grad():
        fast = torchrlopt.optimise(model, x, on_error="raise")
        torch.testing.assert_close(fast(x), model(x))
        fast(x)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "no graph" in told[0]
    assert fast.report.num_graphs == 0
    assert "no graph" in str(fast.report.fallback_reason)


def test_lstm_may_be_traced() -> None:
    model, x = Tagger(nn.LSTM).eval(), torch.randn(2, 16, 9)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        fast = torchrlopt.optimise(model, x, on_error="raise", measure=False)
        torch.testing.assert_close(fast(x), model(x))
    assert fast.report.opaque == ("aten.mkldnn_rnn_layer.default",)
    assert not fast.report.cut
    assert fast.report.steps


def test_parts_are_rewritten() -> None:
    model, x = Tagger(nn.GRU).eval(), torch.randn(2, 16, 9)
    with torch.no_grad():
        expected = model(x)
        model.head = torchrlopt.optimise(model.head, on_error="raise", measure=False)
        torch.testing.assert_close(model(x), expected)
        assert model.head.report.kept == "rewritten"
