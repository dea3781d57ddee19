"""What happens when a stage fails, or brings nothing: the original runs, and the user is told once."""

from __future__ import annotations

import logging
import threading
import traceback

from torchrlopt.capture.aten import NO_OPERATORS
from torchrlopt.errors import RlOptError
from torchrlopt.options import Options
from torchrlopt.plain_text import printable
from torchrlopt.report import Status
from torchrlopt.storage.repro_folder import VARIABLE

logger = logging.getLogger("torchrlopt")


_REPRO_HINT = f" (report.dump_repro(folder) or {VARIABLE}=folder writes a program that repeats it)"


class Warnings:
    """Warns once for each cause; safe for threads."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def warn(self, cause: str, message: str) -> None:
        """Log a warning, unless there was one for this cause."""
        with self._lock:
            is_new = cause not in self._known
            self._known.add(cause)
        if is_new:
            logger.warning("rlopt keeps the original graph: %s", message)

    def clear(self) -> None:
        """Begin anew."""
        with self._lock:
            self._known.clear()


WARNINGS = Warnings()
"""The one of this process."""


_TOO_LARGE = "a graph to which substitutions can be applied in more than "
"""Begins what the core says, which has no other error for a graph that is no model of ours."""


def is_internal(error: Exception) -> bool:
    """Whether an error is a bug of ours that the fallback hides, and nothing that the user can do about.

    The other reasons are the user's, as a graph without operators or in training, or those of the machine.
    """
    if not isinstance(error, RlOptError):
        return not isinstance(error, MemoryError)
    return error.is_bug and not error.what.startswith(_TOO_LARGE)


class Hidden:
    """The internal errors that the fallback has hidden, for tests and trials to fail on; safe for threads."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._lock = threading.Lock()

    def note(self, error: Exception) -> None:
        """Count an error, if it is an internal one."""
        if is_internal(error):
            with self._lock:
                self._texts.append(f"{type(error).__name__}: {described(error)}")

    @property
    def texts(self) -> list[str]:
        """What they say, oldest first."""
        with self._lock:
            return list(self._texts)

    def clear(self) -> None:
        """Begin anew."""
        with self._lock:
            self._texts.clear()


HIDDEN = Hidden()
"""Those of this process."""


def recoverable_errors(options: Options) -> tuple[type[Exception], ...]:
    """What an attempt may raise so that the next one is made.

    With `on_error="raise"` an error that is not one of ours is a bug, which nothing may hide.
    """
    return (Exception,) if options.on_error == "fallback" else (RlOptError, MemoryError)


def described(error: Exception) -> str:
    """The text of an error for a report or a log line; of what nobody expected, its type too."""
    if isinstance(error, RlOptError):
        return str(error)
    return printable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def keep_original(error: Exception, status: Status) -> None:
    """Record an error as the reason why the original is kept, and warn once per cause."""
    status.keep_original(described(error))
    warn_of(error, has_repro=status.repro is not None)


def warn_of(error: Exception, has_repro: bool = False) -> None:
    """Warn once per cause that an error has led to the original; its traceback goes to the log.

    Args:
        error: what was raised.
        has_repro: whether the report has what repeats the failure: the warning says how to get it.
    """
    cause = error.what if isinstance(error, RlOptError) else _place_of(error)
    hint = _REPRO_HINT if has_repro else ""
    WARNINGS.warn(f"{type(error).__name__}: {cause}", described(error) + hint)
    log_traceback(error)


def log_traceback(error: Exception) -> None:
    """Leave the whole error in the log, for whoever looks for its cause, and count it where it is a bug."""
    HIDDEN.note(error)
    if logger.isEnabledFor(logging.INFO):  # a call may fail again and again
        # Causes may have text of a file in them, and the log may go to a terminal.
        text = printable("".join(traceback.format_exception(error)))
        logger.info("rlopt goes on after an error\n%s", text)


def warn_without_gain(status: Status) -> None:
    """Warn once per cause if a graph is left as it is although there was something to gain."""
    reason = status.fallback_reason
    if status.kept == "original" and reason and reason != NO_OPERATORS:
        WARNINGS.warn(reason.partition(":")[0].partition(" (")[0], reason)


def _place_of(error: Exception) -> str:
    """Where it was raised: the message may hold numbers that differ from one time to the next."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return "" if innermost is None else f"{innermost.tb_frame.f_code.co_filename}:{innermost.tb_lineno}"
