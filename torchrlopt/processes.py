"""Processes that work for another one end with it."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """For the beginning of a process: it ends when the one that began it is gone, however that ended.

    A pool's workers wait for work for ever otherwise, each with its memory.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for_the_end_of, args=(parent,), daemon=True).start()


def _wait_for_the_end_of(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
