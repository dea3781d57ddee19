"""Device costs as plain numbers, which can be sent to other processes and stored with a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from torchrlopt import _C
from torchrlopt.machine.cost import MachineProfile, device_model
from torchrlopt.machine.cost.prices import table


@dataclasses.dataclass(frozen=True)
class Prices:
    """Everything that defines a cost model. Without entries: the default device.

    Attributes:
        rates: rates and overheads of the device by name.
        measured: microseconds of timed nodes, by key.
        factors: by operator, on the analytic price of all other nodes.
    """

    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    measured: Mapping[int, float] = dataclasses.field(default_factory=dict)
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Serialise to JSON; `from_json` restores equal prices."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Prices:
        """The inverse of `to_json`. Raises ValueError, KeyError or TypeError for any other text."""
        given = json.loads(text)
        measured = {int(key): float(us) for key, us in given["measured"].items()}
        return cls(given["rates"], measured, given["factors"])


def prices_of(device: _C.DeviceModel) -> Prices:
    """Analytic prices of a device."""
    names = (name for name in dir(device) if not name.startswith("_"))
    return Prices({name: getattr(device, name) for name in names})


def typical_prices(executor: str = "eager", device: str = "cpu") -> Prices:
    """Prices of one typical thread, the same on every machine; reproducible runs train with them."""
    return prices_of(device_model(executor, device, threads=1))


def measured_prices(profile: MachineProfile) -> Prices:
    """Prices of this machine, in the form used by planning."""
    rates = prices_of(profile.device_model()).rates
    return Prices(rates, table(profile.prices), profile.factors())


def cost_of(prices: Prices) -> _C.CostModel:
    """Build the cost model of these prices."""
    device = _C.DeviceModel()
    for name, value in prices.rates.items():
        setattr(device, name, value)
    return _C.CostModel(device, dict(prices.measured), dict(prices.factors))
