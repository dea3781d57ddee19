"""Keeps third-party log messages about a user's model off the user's terminal."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from torchrlopt.warning_filter import ignored_warnings

_LIBRARIES = ("onnx_ir", "onnxscript")


@contextlib.contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Show only errors of these loggers and their descendants, and no Python warnings, during foreign code.

    Without names, those of the libraries that read and write ONNX. Messages from other threads, which may be
    using the same libraries, are not filtered.
    """
    own = threading.get_ident()

    def is_shown(record: logging.LogRecord) -> bool:
        return record.thread != own or record.levelno >= logging.ERROR

    loggers = [logging.getLogger(name) for name in _with_descendants(names or _LIBRARIES)]
    for logger in loggers:
        logger.addFilter(is_shown)
    try:
        with ignored_warnings():
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_shown)


def _with_descendants(names: tuple[str, ...]) -> list[str]:
    """Includes descendants, because a logger's filters do not apply to them."""
    below = tuple(f"{name}." for name in names)
    return [*names, *(name for name in list(logging.root.manager.loggerDict) if name.startswith(below))]
