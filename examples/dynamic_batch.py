"""Batches of any size: compiled for one size, then once more for all.

    python examples/dynamic_batch.py

At the second batch size PyTorch makes the batch dimension symbolic; all further sizes run the same graph.
"""

import torch
from torch import nn

import torchrlopt


class Experts(nn.Module):
    """Small networks whose outputs are weighted by a gate."""

    def __init__(self, width: int = 128, experts: int = 6) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) to (batch, width)."""
        gates = self.gate(x).softmax(dim=-1)
        return sum(gates[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Experts().eval()
    with torch.inference_mode():
        fast = torchrlopt.optimise(model)  # compiled at the first call
        for batch in (4, 8, 1, 3, 32, 64):
            x = torch.randn(batch, 128)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
            print(f"batch {batch:2}: right, {len(fast.reports)} graphs compiled so far")
    print(fast.report)
