"""Keeps what other projects log about a user's model off the user's terminal."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from torchrlopt.warning_filter import ignored_warnings

_LIBRARIES = ("onnx_ir", "onnxscript")


@contextlib.contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Let loggers pass errors only, and Python's warnings not at all, around a call of other people's code.

    What the loggers are told by other threads, which may use the same libraries now, is passed on.

    Args:
        names: of the loggers, those below them included; none: those of the libraries that read and write
            ONNX.
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
    """A logger's filters do not see what is logged below it."""
    below = tuple(f"{name}." for name in names)
    return [*names, *(name for name in list(logging.root.manager.loggerDict) if name.startswith(below))]
