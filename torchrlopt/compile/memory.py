"""The graphs that this process has compiled, by content; cleared by `torch._dynamo.reset()`."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections import OrderedDict, deque

from torchrlopt.compile.compiled import Compiled
from torchrlopt.compile.fallback import WARNINGS
from torchrlopt.report import Report

MAX_KEPT_ORIGINAL = 256  # graphs that were left unchanged; a small report each
MAX_REPORTS = 64


class Memory:
    """Compiled graphs and verdicts by content key; thread-safe.

    Attributes:
        compiled: rewritten graphs, for as long as they are in use.
        kept_original: the latest reports of graphs that are left unchanged.
        reports: of the graphs most recently compiled through torch.compile.
    """

    def __init__(self) -> None:
        # weak: a compiled graph lives as long as Dynamo's code for it, and so do its packed weights
        self.compiled: weakref.WeakValueDictionary[str, Compiled] = weakref.WeakValueDictionary()
        self.kept_original: OrderedDict[str, Report] = OrderedDict()
        self.reports: deque[Report] = deque(maxlen=MAX_REPORTS)
        self._lock = threading.Lock()

    def find(self, key: str) -> tuple[Compiled | None, Report] | None:
        """Return the compiled graph (None for the original) and its report; None if the key is unknown."""
        with self._lock:
            compiled = self.compiled.get(key)
            if compiled is not None and compiled.report is not None:
                return (None if compiled.lowered is None else compiled), compiled.report
            report = self.kept_original.get(key)
            if report is None:
                return None
            self.kept_original.move_to_end(key)
            return None, report

    def keep(self, key: str, compiled: Compiled, report: Report) -> None:
        """Store a compiled graph with its report."""
        compiled.report = report
        with self._lock:
            self.compiled[key] = compiled

    def keep_original(self, key: str, report: Report) -> None:
        """Store that a graph is left unchanged."""
        with self._lock:
            self.compiled.pop(key, None)
            # without the records that the page is drawn from: each holds a graph of the core, too much here
            self.kept_original[key] = dataclasses.replace(report, records=())
            while len(self.kept_original) > MAX_KEPT_ORIGINAL:
                self.kept_original.popitem(last=False)

    def clear(self) -> None:
        """Clear everything."""
        with self._lock:
            self.compiled.clear()
            self.kept_original.clear()
            self.reports.clear()
        WARNINGS.clear()


MEMORY = Memory()
"""The instance of this process."""
