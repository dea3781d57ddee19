"""Describes how an executor's prices differ from eager PyTorch's, in plain words."""

from __future__ import annotations

from collections.abc import Mapping

_FACTS = {
    "views_are_free": "views and reshapes are compiled away",
    "copies_cuts": "it knows no strides: transposes and most slices are copies",
    "fuses_elementwise": "it makes one kernel of a chain of elementwise operators by itself",
    "fuses_epilogues": "it runs an activation inside the product or convolution before it by itself",
}
_COSTS = {
    "launch_us": "a kernel",
    "contraction_launch_us": "a product or convolution",
    "view_us": "a view",
}


def differences(own: Mapping[str, float], base: Mapping[str, float]) -> tuple[str, ...]:
    """Return sentences on the differences.

    Args:
        own: fields of the executor's `DeviceModel` that differ from eager PyTorch's.
        base: the same fields of eager PyTorch.
    """
    return tuple(_sentence(name, value, base[name]) for name, value in own.items())


def _sentence(name: str, value: float, base: float) -> str:
    if name in _FACTS:
        return _FACTS[name] if value else f"not so: {_FACTS[name]}"
    if name in _COSTS:
        cost = f"{value:g} µs" if value else "nothing"
        return f"to start {_COSTS[name]} costs {cost}, in eager PyTorch {base:g} µs"
    return f"{name.replace('_', ' ')}: {value:g}, in eager PyTorch {base:g}"
