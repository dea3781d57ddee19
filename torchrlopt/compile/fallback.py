"""Falls back to the original if a stage fails or gains nothing, and warns the user once."""

from __future__ import annotations

import logging
import traceback

from torchrlopt.capture.aten import NO_OPERATORS
from torchrlopt.errors import RlOptError
from torchrlopt.options import OnError
from torchrlopt.plain_text import printable
from torchrlopt.report import Status
from torchrlopt.storage.repro_folder import VARIABLE

logger = logging.getLogger("torchrlopt")


_REPRO_HINT = f" (report.dump_repro(folder) or {VARIABLE}=folder writes a program that repeats it)"


class Warnings:
    """Warns once per cause; two threads at once may warn twice."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def warn(self, cause: str, message: str, outcome: str = "keeps the original graph") -> None:
        """Log a warning of what rlopt does and why, unless there was one for this cause."""
        if cause not in self._known:
            self._known.add(cause)
            logger.warning("rlopt %s: %s", outcome, message)

    def clear(self) -> None:
        """Reset, so that every cause warns again."""
        self._known.clear()


WARNINGS = Warnings()
"""The instance of this process."""


_TOO_LARGE = "a graph to which substitutions can be applied in more than "
"""Start of the core's error message for such a graph, which is not a bug but has no error type."""


def is_internal(error: Exception) -> bool:
    """Whether an error is a bug of ours that the fallback hides, and that the user can do nothing about.

    Other errors are caused by the user, such as a graph without operators or in training, or by the machine.
    """
    if not isinstance(error, RlOptError):
        return not isinstance(error, MemoryError)
    return error.is_bug and not error.what.startswith(_TOO_LARGE)


class Hidden:
    """The internal errors that the fallback has hidden, so that tests and trials can fail."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, error: Exception) -> None:
        """Record an error if it is an internal one."""
        if is_internal(error):
            self.texts.append(f"{type(error).__name__}: {described(error)}")

    def clear(self) -> None:
        """Clear the record."""
        self.texts.clear()


HIDDEN = Hidden()
"""The instance of this process."""


def recoverable_errors(on_error: OnError) -> tuple[type[Exception], ...]:
    """Return the exceptions of an attempt after which the next one is tried.

    With `on_error="raise"` any other exception is a bug, which must not be hidden.
    """
    return (Exception,) if on_error == "fallback" else (RlOptError, MemoryError)


def described(error: Exception) -> str:
    """Return the text of an error for a report or a log line; with its type if the error is unexpected."""
    if isinstance(error, RlOptError):
        return str(error)
    return printable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def keep_original(error: Exception, status: Status) -> None:
    """Record an error as the reason why the original is kept, and warn once per cause."""
    status.keep_original(described(error))
    warn_of(error, has_repro=status.repro is not None)


def warn_of(error: Exception, has_repro: bool = False) -> None:
    """Warn once per cause that an error has led to the original; log its traceback.

    If the report can reproduce the failure, the warning says how.
    """
    cause = error.what if isinstance(error, RlOptError) else _place_of(error)
    hint = _REPRO_HINT if has_repro else ""
    WARNINGS.warn(f"{type(error).__name__}: {cause}", described(error) + hint)
    log_traceback(error)


def log_traceback(error: Exception) -> None:
    """Log the whole error for debugging, and count it if it is a bug."""
    HIDDEN.note(error)
    if logger.isEnabledFor(logging.INFO):  # a call may fail repeatedly
        # Causes may quote text from a file, and the log may go to a terminal.
        text = printable("".join(traceback.format_exception(error)))
        logger.info("rlopt goes on after an error\n%s", text)


def warn_without_gain(status: Status) -> None:
    """Warn once per cause if a graph with something to gain is left unchanged."""
    reason = status.fallback_reason
    if status.kept == "original" and reason and reason != NO_OPERATORS:
        WARNINGS.warn(reason.partition(":")[0].partition(" (")[0], reason)


def _place_of(error: Exception) -> str:
    """Return where it was raised: the message may hold numbers that vary."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return "" if innermost is None else f"{innermost.tb_frame.f_code.co_filename}:{innermost.tb_lineno}"
