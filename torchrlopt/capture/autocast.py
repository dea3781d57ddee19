"""The autocast of the caller: how it is named, and how a function runs under it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrlopt.torch_private.modes import is_any_autocast_enabled

_DEVICES = ("cpu", "cuda")


def autocast_state() -> tuple[str, ...]:
    """The autocast that is on now, such as "cpu bfloat16": one string per device, none if it is off."""
    if not is_any_autocast_enabled():  # as in nearly all calls
        return ()
    devices = _enabled()
    return tuple(f"{each} {str(torch.get_autocast_dtype(each)).removeprefix('torch.')}" for each in devices)


def under_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function to run under the autocast that is on now, as the caller would run it.

    AOTAutograd turns autocast off while it compiles, as its graphs contain the casts. Dynamo's graph does
    not.
    """
    devices = _enabled()
    if not devices:
        return function

    def run(*args: Any) -> Any:
        before = [torch.is_autocast_enabled(device) for device in devices]
        for device in devices:
            torch.set_autocast_enabled(device, True)
        try:
            return function(*args)
        finally:
            for device, was_enabled in zip(devices, before, strict=True):
                torch.set_autocast_enabled(device, was_enabled)

    return run


def _enabled() -> list[str]:
    """The devices for which autocast is on."""
    return [device for device in _DEVICES if torch.is_autocast_enabled(device)]
