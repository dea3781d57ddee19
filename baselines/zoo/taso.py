"""The recurrent and the attention benchmark of TASO (Jia et al. 2019), following its released examples."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class NasCell(nn.Module):
    """One step of the recurrent cell found by Zoph and Le (2017): eight gates, a tree of pairs above them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.from_input = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(8))
        self.from_state = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(8))

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        gates = [i(x) + s(state) for i, s in zip(self.from_input, self.from_state, strict=True)]
        pair_0 = torch.relu(gates[0]) + torch.sigmoid(gates[3])
        pair_1 = torch.sigmoid(gates[1]) + torch.tanh(gates[2])
        pair_2 = torch.sigmoid(gates[4]) * torch.tanh(gates[5])
        pair_3 = torch.sigmoid(gates[6]) * torch.relu(gates[7])
        upper_0 = torch.sigmoid(pair_1) + torch.tanh(pair_2)
        upper_1 = torch.tanh(pair_0) * torch.tanh(pair_3)
        return torch.tanh(torch.tanh(upper_0) * torch.tanh(upper_1))


class NasRnn(nn.Module):
    """The cell unrolled over a sequence [T, B, width]: states of all steps [T, B, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = NasCell(width)
        self.state = nn.Parameter(0.5 * torch.randn(1, width))

    def forward(self, sequence: Tensor) -> Tensor:
        state = self.state.expand(sequence.shape[1], -1)
        states = []
        for x in sequence.unbind(0):
            state = self.cell(x, state)
            states.append(state)
        return torch.stack(states)


class ToyAttention(nn.Module):
    """TASO's "attention": no softmax, scale or bias; its last product reads the layer's input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        std = 1 / math.sqrt(width)
        # Without a scale the product of the three is of order T * width / heads; small weights compensate.
        self.query = nn.Parameter(std / 16 * torch.randn(width, width))
        self.key = nn.Parameter(std / 4 * torch.randn(width, width))
        self.value = nn.Parameter(std * torch.randn(width, width))
        self.out = nn.Parameter(std * torch.randn(width, width))

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.num_heads, -1).permute(1, 0, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [T, width] to the next layer's tokens and this layer's attention, both [T, width]."""
        q, k, v = self._heads(x @ self.query), self._heads(x @ self.key), self._heads(x @ self.value)
        attended = (q @ k.transpose(1, 2)) @ v
        return x @ self.out, attended.permute(1, 0, 2).reshape(x.shape)


class ToyBert(nn.Module):
    """TASO's toy BERT: 8 layers without softmax, normalisation, bias, MLP or residual.

    In the released example the attention of a layer feeds nothing; TASO still runs it, because it does not
    remove dead code. Here each is an output, so that no compiler removes it.
    """

    def __init__(self, width: int = 1024, num_heads: int = 16, num_layers: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ToyAttention(width, num_heads) for _ in range(num_layers))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        attentions = []
        for layer in self.layers:
            x, attended = layer(x)
            attentions.append(attended)
        return (x, *attentions)


def nasrnn() -> nn.Module:
    """NASRNN of width 512, with a linear layer per gate."""
    return NasRnn(512)
