"""What this process has compiled, by content; emptied by `torch._dynamo.reset()`."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from torchrlopt.errors import RlOptError
from torchrlopt.executors.registry import Lowered
from torchrlopt.report import Report

logger = logging.getLogger("torchrlopt")

MAX_KEPT_ORIGINAL = 256  # graphs that were left as they are; a small report each
MAX_REPORTS = 64


class Compiled:
    """A rewritten graph in the calling convention of AOTAutograd, with its report."""

    _boxed_call = True

    def __init__(self, lowered: Lowered, report: Report) -> None:
        self.lowered = lowered
        self.report = report

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Run on a list of arguments, which is emptied."""
        outputs = self.lowered(*args)
        args.clear()
        return outputs


class Memory:
    """Compiled graphs and verdicts by content key; safe for threads.

    Attributes:
        compiled: rewritten graphs, for as long as somebody uses them.
        kept_original: reports of graphs that stay as they are, the latest ones.
        reports: of the graphs most recently compiled through torch.compile.
    """

    def __init__(self) -> None:
        # weak: a compiled graph lives as long as Dynamo's code for it, and so do its packed weights
        self.compiled: weakref.WeakValueDictionary[str, Compiled] = weakref.WeakValueDictionary()
        self.kept_original: OrderedDict[str, Report] = OrderedDict()
        self.reports: deque[Report] = deque(maxlen=MAX_REPORTS)
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def find(self, key: str) -> tuple[Compiled | None, Report] | None:
        """The compiled graph (None for the original) and its report; None where the key is unknown."""
        with self._lock:
            compiled = self.compiled.get(key)
            if compiled is not None:
                return compiled, compiled.report
            report = self.kept_original.get(key)
            if report is None:
                return None
            self.kept_original.move_to_end(key)
            return None, report

    def keep(self, key: str, lowered: Lowered | None, report: Report) -> Compiled | None:
        """Remember a verdict; the compiled graph, or None where the original is kept."""
        with self._lock:
            if lowered is not None:
                compiled = self.compiled[key] = Compiled(lowered, report)
                return compiled
            self.kept_original[key] = report
            while len(self.kept_original) > MAX_KEPT_ORIGINAL:
                self.kept_original.popitem(last=False)
            return None

    def warn_once(self, error: RlOptError | MemoryError) -> None:
        """Warn that the original is kept, once for each cause."""
        cause = f"{type(error).__name__}: {getattr(error, 'what', error)}"
        with self._lock:
            is_new = cause not in self._warned
            self._warned.add(cause)
        if is_new:
            logger.warning("rlopt keeps the original graph: %s", error)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.compiled.clear()
            self.kept_original.clear()
            self.reports.clear()
            self._warned.clear()


MEMORY = Memory()
"""The one of this process."""


def keep_original(error: RlOptError | MemoryError, report: Report) -> None:
    """Record why the original is kept, and warn once per cause."""
    report.kept = "original"
    report.fallback_reason = str(error) or type(error).__name__
    MEMORY.warn_once(error)
