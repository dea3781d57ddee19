"""The rates of a device as plain numbers, which travel to other processes."""

from __future__ import annotations

from torchrlopt import _C

Prices = dict[str, float]


def prices_of(device: _C.DeviceModel) -> Prices:
    """Every rate and overhead by name."""
    names = (name for name in dir(device) if not name.startswith("_"))
    return {name: getattr(device, name) for name in names}


def cost_of(prices: Prices) -> _C.CostModel:
    """The cost model of a device; the default device for no prices."""
    device = _C.DeviceModel()
    for name, value in prices.items():
        setattr(device, name, value)
    return _C.CostModel(device)
