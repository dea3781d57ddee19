"""How far results move when what goes in is rounded once more.

Two right ways of computing one thing differ in rounding, and a graph hands on what its first operators have
rounded: of a few outputs all may then be twice as far from the truth in one way as in the other, by chance.
A result is as right as can be asked if it is that of data which differ in their last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_DRAWS = 3


def moved(
    run: Callable[[Sequence[Any]], Sequence[Any]],
    inputs: Sequence[Any],
    reference: Sequence[Any],
    dtypes: Sequence[torch.dtype],
) -> list[torch.Tensor | None]:
    """For each output the distances from the reference when all real inputs and weights are rounded anew.

    Args:
        run: the graph in float64.
        inputs: of the graph.
        reference: its outputs for these inputs.
        dtypes: of the outputs in the graph's own precision; the coarsest says how much is rounded.

    Returns:
        `_DRAWS` distances of each element, in float64, one below the other; None for what is no real tensor.
    """
    eps = max((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point), default=0.0)
    found: list[list[torch.Tensor]] = [[] for _ in reference]
    for seed in range(_DRAWS):
        outputs = run([_rounded(each, eps, seed) for each in inputs])
        for own, exact, other in zip(found, reference, outputs, strict=True):
            if _is_real(exact):
                own.append((other.double() - exact.double()).abs())
    return [torch.stack(own) if own else None for own in found]


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _rounded(value: Any, eps: float, seed: int) -> Any:
    """A tensor in float64, each element changed by up to half a unit in its last place."""
    if not _is_real(value):
        return value
    generator = torch.Generator(value.device).manual_seed(seed)
    draw = torch.rand(value.shape, generator=generator, dtype=torch.float64, device=value.device)
    return value.detach().double() * (1 + eps * (draw - 0.5))
