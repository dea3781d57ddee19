"""What a device costs as plain numbers, which travel to other processes and lie beside a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from torchrlopt import _C
from torchrlopt.machine.cost import MachineProfile, device_model
from torchrlopt.machine.cost.prices import table


@dataclasses.dataclass(frozen=True)
class Prices:
    """Everything that a cost model is made of. Without entries: the default device.

    Attributes:
        rates: rates and overheads of the device by name.
        measured: microseconds of nodes that were timed, by key.
        factors: on the analytic price of the others, by operator.
    """

    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    measured: Mapping[int, float] = dataclasses.field(default_factory=dict)
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Text from which `from_json` makes equal prices."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Prices:
        """The inverse of `to_json`; raises ValueError, KeyError or TypeError for another text."""
        given = json.loads(text)
        measured = {int(key): float(us) for key, us in given["measured"].items()}
        return cls(given["rates"], measured, given["factors"])


def prices_of(device: _C.DeviceModel) -> Prices:
    """Analytic prices of a device."""
    names = (name for name in dir(device) if not name.startswith("_"))
    return Prices({name: getattr(device, name) for name in names})


def typical_prices(executor: str = "eager", device: str = "cpu") -> Prices:
    """Those of one thread, the same on every machine: what runs that are to be repeated are trained by."""
    return prices_of(device_model(executor, device, threads=1))


def measured_prices(profile: MachineProfile) -> Prices:
    """Prices of this machine, as planning takes them."""
    rates = prices_of(profile.device_model()).rates
    return Prices(rates, table(profile.prices), profile.factors())


def cost_of(prices: Prices) -> _C.CostModel:
    """The cost model of these prices."""
    device = _C.DeviceModel()
    for name, value in prices.rates.items():
        setattr(device, name, value)
    return _C.CostModel(device, dict(prices.measured), dict(prices.factors))
