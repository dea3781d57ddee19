"""Costs of graphs on this machine: the cost model, measured prices and their store."""

from torchrlopt.machine.cost.model import (
    COST_CLASSES,
    MachineProfile,
    cost_model,
    device_model,
    machine_profile,
    profile_store,
)
from torchrlopt.machine.cost.store import Price, ProfileStore

__all__ = [
    "COST_CLASSES",
    "MachineProfile",
    "Price",
    "ProfileStore",
    "cost_model",
    "device_model",
    "machine_profile",
    "profile_store",
]
