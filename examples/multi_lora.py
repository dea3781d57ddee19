"""A server that applies several low-rank adapters to one base model, all of them for every request.

    python examples/multi_lora.py

Each adapter is two thin products next to a wide one (LoRA, https://arxiv.org/abs/2106.09685). As written,
every linear layer of the model makes nine products.
"""

import torch
from torch import nn

import torchrlopt


class AdaptedLinear(nn.Module):
    """A linear layer plus a weighted sum of adapters."""

    def __init__(self, width: int, rank: int, adapters: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(adapters))
        self.up = nn.ModuleList(nn.Linear(rank, width, bias=False) for _ in range(adapters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The base layer's output plus the contribution of each adapter."""
        y = self.base(x)
        for down, up in zip(self.down, self.up, strict=True):
            y = y + up(down(x))
        return y


class Server(nn.Module):
    """Residual layers, as between the attention blocks of a transformer."""

    def __init__(self, width: int = 256, rank: int = 8, adapters: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AdaptedLinear(width, rank, adapters) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features of a request, (tokens, width)."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.nn.functional.gelu(layer(norm(x)))
        return x


if __name__ == "__main__":
    torch.manual_seed(0)
    model, x = Server().eval(), torch.randn(32, 256)
    with torch.no_grad():
        fast = torchrlopt.optimise(model, x)
        print(fast.report)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)

        # Update one adapter: the next call recomputes the merged weights.
        before = fast(x)
        model.layers[0].up[2].weight.mul_(2.0)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
        assert not torch.equal(fast(x), before)
        print("a changed adapter is seen at the next call")
