"""Our kernel of recurrent layers, against PyTorch in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.kernels.kernel_cases import check, prepare
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.ops.recurrent import CELLS, RECURRENT

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

LAYERS: dict[str, Any] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **flags: nn.RNN(*sizes, nonlinearity="relu", **flags),
}


def operands(layer: nn.RNNBase, batch: int) -> tuple[list[Tensor], list[Tensor]]:
    """First states and weights."""
    torch.manual_seed(0)
    sizes = (layer.num_layers * (2 if layer.bidirectional else 1), batch, layer.hidden_size)
    states = [torch.randn(sizes) for _ in range(2 if layer.mode == "LSTM" else 1)]
    return states, [weight.detach() for weight in layer._flat_weights]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("cell", "bidirectional"), [*itertools.product(CELLS, [False, True])])
def test_layers(cell: str, bidirectional: bool, threads: int) -> None:
    """Whole vectors and parts of them, one row and more than a tile, chunks of steps, and several threads."""
    for inputs, hidden, steps, batch in [(3, 1, 1, 1), (5, 33, 60, 1), (40, 64, 7, 9), (9, 200, 3, 17)]:
        layer = LAYERS[cell](inputs, hidden, bidirectional=bidirectional)
        states, weights = operands(layer, batch)
        x = torch.randn(batch, steps, inputs).transpose(0, 1)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            number, directions = list(CELLS).index(cell), 2 if bidirectional else 1
            packed = indirect.pack_recurrent(weights, number, directions)
            found = indirect.recurrent(x, packed, *[*states, None][:2], number, hidden, directions)
        finally:
            torch.set_num_threads(before)
        exact = layer.double()(
            x.double(), tuple(map(Tensor.double, states)) if len(states) > 1 else states[0].double()
        )
        expected = (exact[0], *(exact[1] if len(states) > 1 else [exact[1]]))
        for ours, theirs in zip(found, expected, strict=False):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_layers_of_a_graph_are_packed(cell: str, dynamic: bool) -> None:
    layer = LAYERS[cell](6, 10, num_layers=2, bidirectional=True, batch_first=True, bias=cell != "gru")
    states, weights = operands(layer, 3)
    flags = (cell, layer.bias, 2, True, True)

    def run(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        y, h, c = RECURRENT(x, others[: len(states)], others[len(states) :], *flags)
        return (y + 1, h, c) if cell == "lstm" else (y + 1, h)

    args = (torch.randn(3, 7, 6), *states, *weights)
    static = range(1 + len(states), len(args))
    check(run, args, static, dynamic=dynamic)
    assert prepare(run, args, static, dynamic=dynamic).count("recurrent_layer") == 2


def test_what_is_no_weight_is_left_alone() -> None:
    states, weights = operands(nn.GRU(4, 4), 2)
    args = (torch.randn(3, 2, 4), *states, *weights)
    prepared = prepare(lambda x, h, *w: RECURRENT(x, [h], w, "gru", True, 1, False, False)[:2], args, ())
    assert prepared.count("recurrent_layer") == 0
