"""Runs functions of a test concurrently."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


def in_threads(*functions: Callable[[], None]) -> None:
    """Run all at the same time; the first error of any is raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def guarded(function: Callable[[], None]) -> None:
        try:
            start.wait(60)
            with torch.no_grad():
                function()
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
