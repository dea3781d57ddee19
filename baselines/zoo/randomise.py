"""Randomises new models, whose zero biases and identity norms would hide wrong rewrites.

Every bias and every normalisation's affine part becomes random, and BatchNorm gets random statistics in
proportion to its input activations, so that values stay of order one however deep the network is. The mean of
the activations is not subtracted: in a deep random network that would amplify each rounding error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

#: BatchNorm's variance is at least about this share of its layer's mean: a channel that the preceding
#: activation has switched off would otherwise be divided by almost zero.
_MIN_POWER_SHARE = 0.25


def _uniform(like: Tensor, low: float, high: float) -> Tensor:
    return torch.rand_like(like) * (high - low) + low


def _randomise_affine(module: nn.Module) -> None:
    """Draw a norm's weight from U(0.5, 1.5) and any bias from 0.1 * N(0, 1)."""
    is_norm = "Norm" in type(module).__name__  # torch's own, RMSNorm, and the frozen ones of detectors
    weight = getattr(module, "weight", None)
    bias = getattr(module, "bias", None)
    if is_norm and isinstance(weight, Tensor):
        weight.copy_(_uniform(weight, 0.5, 1.5))
    if isinstance(bias, Tensor) and bias.is_floating_point():  # GPT-2 has a boolean mask of that name
        bias.copy_(0.1 * torch.randn_like(bias))


def _tracks_statistics(module: nn.Module) -> bool:
    return isinstance(getattr(module, "running_var", None), Tensor)


def _set_statistics(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Set a BatchNorm's statistics from the mean square of the input [B, C, ...] about to pass through it."""
    x: Tensor = args[0]
    power = x.square().mean(dim=[axis for axis in range(x.dim()) if axis != 1])
    power = torch.maximum(power, _MIN_POWER_SHARE * power.mean())
    mean = 0.1 * torch.randn_like(power) * power.sqrt()
    variance = power * _uniform(power, 0.5, 1.5)
    # Eight significant bits are enough, and hide rounding differences between numbers of threads.
    for statistic, value in ((module.running_mean, mean), (module.running_var, variance)):
        if not isinstance(statistic, Tensor):
            raise TypeError(f"{type(module).__name__}: expected a BatchNorm that tracks statistics")
        statistic.copy_(value.bfloat16())


@torch.no_grad()
def randomise(model: nn.Module, example_inputs: Sequence[Any] | Mapping[str, Any]) -> None:
    """Randomise biases, affine parameters and BatchNorm statistics of `model`, in place.

    Args:
        model: The model, in eval mode.
        example_inputs: Positional or keyword arguments of the model; one forward pass over them sets the
            BatchNorm statistics.
    """
    for module in model.modules():
        _randomise_affine(module)
    norms = [module for module in model.modules() if _tracks_statistics(module)]
    if not norms:
        return
    hooks = [norm.register_forward_pre_hook(_set_statistics) for norm in norms]
    if isinstance(example_inputs, Mapping):
        model(**example_inputs)
    else:
        model(*example_inputs)
    for hook in hooks:
        hook.remove()
