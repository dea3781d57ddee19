"""What this process has compiled, by content; emptied by `torch._dynamo.reset()`."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections import OrderedDict, deque

from torchrlopt.compile.compiled import Compiled
from torchrlopt.compile.fallback import WARNINGS
from torchrlopt.report import Report

MAX_KEPT_ORIGINAL = 256  # graphs that were left as they are; a small report each
MAX_REPORTS = 64


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
        self._lock = threading.Lock()

    def find(self, key: str) -> tuple[Compiled | None, Report] | None:
        """The compiled graph (None for the original) and its report; None where the key is unknown."""
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
        """Remember a compiled graph with its report."""
        compiled.report = report
        with self._lock:
            self.compiled[key] = compiled

    def keep_original(self, key: str, report: Report) -> None:
        """Remember that a graph stays as it is."""
        with self._lock:
            self.compiled.pop(key, None)
            # without what the page is drawn from: a graph of the core each would be too much here
            self.kept_original[key] = dataclasses.replace(report, records=())
            while len(self.kept_original) > MAX_KEPT_ORIGINAL:
                self.kept_original.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.compiled.clear()
            self.kept_original.clear()
            self.reports.clear()
        WARNINGS.clear()


MEMORY = Memory()
"""The one of this process."""
