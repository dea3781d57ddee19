"""Random image networks for kernel tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight


def shuffled(x: Tensor, groups: int) -> Tensor:
    """A channel shuffle, as networks write it."""
    batch, channels, height, width = x.shape
    turned = x.reshape(batch, groups, channels // groups, height, width).transpose(1, 2)
    return turned.contiguous().view(batch, channels, height, width)


def random_net(draw: random.Random) -> tuple[Callable[..., Any], list[Tensor]]:
    """A function of an image and weights, of calls that are gathered and some that are not."""
    weights: list[Tensor] = []
    steps: list[Callable[[list[Tensor], list[Tensor]], Tensor]] = []
    channels = [draw.choice([3, 8, 8, 16])]

    def use(value: Tensor) -> int:
        weights.append(value)
        return len(weights) - 1

    for _ in range(draw.randint(4, 18)):
        at = max(draw.randrange(len(channels)) for _ in range(2))
        kind = draw.choice(
            ["conv", "conv", "depthwise", "split", "pool", "cat", "add", "act", "gate", "shuffle", "sort"]
        )
        width = channels[at]
        if kind == "conv" or width < 8:
            out, size = draw.choice([8, 17, 24, 40]), draw.choice([1, 1, 3])
            number = use(weight(out, width, size, size))
            steps.append(lambda v, w, at=at, n=number, s=size: F.relu(F.conv2d(v[at], w[n], padding=s // 2)))
            width = out
        elif kind == "depthwise":
            number = use(weight(width, 1, 3, 3))
            steps.append(lambda v, w, at=at, n=number, c=width: F.conv2d(v[at], w[n], padding=1, groups=c))
        elif kind == "split":
            cut, which = draw.randint(1, width - 1), draw.randrange(2)
            sizes = (cut, width - cut)
            steps.append(lambda v, w, at=at, sizes=sizes, n=which: v[at].split(sizes, 1)[n])
            width = sizes[which]
        elif kind == "pool":
            pool = draw.choice([F.max_pool2d, F.avg_pool2d])
            steps.append(lambda v, w, at=at, pool=pool: pool(v[at], 3, 1, 1))
        elif kind == "cat":
            other = draw.randrange(len(channels))
            steps.append(lambda v, w, at=at, other=other: torch.cat([v[at], v[other]], 1))
            width += channels[other]
        elif kind == "add":
            same = [n for n, each in enumerate(channels) if each == width]
            other = draw.choice(same)
            operation = draw.choice([torch.add, torch.mul])
            steps.append(lambda v, w, at=at, other=other, f=operation: f(v[at], v[other]))
        elif kind == "act":
            act = draw.choice([F.relu, torch.sigmoid, F.silu, F.gelu, torch.tanh, F.hardswish])
            steps.append(lambda v, w, at=at, act=act: act(v[at]))
        elif kind == "gate":
            number = use(rand(width, width) / width)
            steps.append(
                lambda v, w, at=at, n=number: (
                    v[at] * torch.sigmoid(F.linear(v[at].mean((2, 3)), w[n]))[:, :, None, None]
                )
            )
        elif kind == "shuffle":
            groups = draw.choice([n for n in range(1, width + 1) if width % n == 0])
            steps.append(lambda v, w, at=at, groups=groups: shuffled(v[at], groups))
        else:
            steps.append(lambda v, w, at=at: v[at].sort(1).values)
        channels.append(width)
    returned = draw.sample(range(1, len(channels)), k=min(len(channels) - 1, draw.randint(1, 3)))

    def function(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for step in steps:
            values.append(step(values, list(given)))
        return (*(values[at] for at in returned), values[-1])

    return function, [rand(draw.randint(1, 2), channels[0], draw.choice([5, 12, 40]), 9), *weights]
