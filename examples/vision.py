"""A convolutional network in training form: branches, BatchNorms and sums become single convolutions.

    python examples/vision.py

The weights are random; replace `Net` with your own model, call `.eval()`, and pass inputs of the size that
you serve.
"""

import time

import torch
from torch import nn

import torchrlopt


class Block(nn.Module):
    """A RepVGG block in training form (https://arxiv.org/abs/2101.03697)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.large = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.small = nn.Sequential(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width))
        self.identity = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of three branches."""
        return torch.relu(self.large(x) + self.small(x) + self.identity(x))


class Net(nn.Module):
    """A stem, three stages, a classifier."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=2, padding=1)]
        for _ in range(3):
            layers += [Block(width), Block(width), nn.Conv2d(width, width, 3, stride=2, padding=1)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of images, (batch, 3, height, width)."""
        return self.body(x)


def milliseconds(call, x: torch.Tensor, rounds: int = 20) -> float:
    """The minimum over some calls."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call(x)
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


if __name__ == "__main__":
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        fast = torchrlopt.optimise(model, x)
        print(fast.report)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
        print(f"original {milliseconds(model, x):.2f} ms, optimised {milliseconds(fast, x):.2f} ms")
