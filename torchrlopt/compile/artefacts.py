"""Logs and artefacts of a compilation, for debugging.

`TORCH_LOGS="torchrlopt"` logs the outcome for each graph, `TORCH_LOGS="+torchrlopt"` the graphs too, and
`TORCH_TRACE=FOLDER` adds them to the trace that `tlparse` renders. Otherwise this does nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from torchrlopt import _C
from torchrlopt.compile import fallback
from torchrlopt.report import Report
from torchrlopt.torch_private.modes import trace_structured

logger = logging.getLogger("torchrlopt")


def log_graphs(before: _C.Graph, after: _C.Graph) -> None:
    """Log the graph before and after the plan."""
    for name, graph in (("before", before), ("after", after)):
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("the graph %s the plan:\n%s", name, graph.canonical_text())
        _artefact(f"rlopt_graph_{name}", "string", graph.canonical_text)


def log_report(report: Report) -> None:
    """Log the outcome for a graph."""
    logger.info("%s%s", report.summary, f": {report.fallback_reason}" if report.fallback_reason else "")
    _artefact("rlopt_report", "json", report.to_json)


def _artefact(name: str, encoding: str, content: Callable[[], str]) -> None:
    """Never raises: a trace that cannot be written must not cost the user the graph."""
    try:
        trace_structured("artifact", lambda: {"name": name, "encoding": encoding}, payload_fn=content)
    except Exception as error:  # noqa: BLE001  # of what the trace is written to
        fallback.log_traceback(error)
