"""Logs and artefacts of a compilation, for those who look into it.

`TORCH_LOGS="torchrlopt"` shows what became of each graph, `TORCH_LOGS="+torchrlopt"` the graphs too, and with
`TORCH_TRACE=FOLDER` they stand in the trace that `tlparse` makes pages of. Without these nothing is made.
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
    """The graph that was planned, and what the plan made of it."""
    for name, graph in (("before", before), ("after", after)):
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("the graph %s the plan:\n%s", name, graph.canonical_text())
        _artefact(f"rlopt_graph_{name}", "string", graph.canonical_text)


def log_report(report: Report) -> None:
    """What became of a graph."""
    logger.info("%s%s", report.summary, f": {report.fallback_reason}" if report.fallback_reason else "")
    _artefact("rlopt_report", "json", report.to_json)


def _artefact(name: str, encoding: str, content: Callable[[], str]) -> None:
    """Never raises: a trace that cannot be written takes no graph away."""
    try:
        trace_structured("artifact", lambda: {"name": name, "encoding": encoding}, payload_fn=content)
    except Exception as error:  # noqa: BLE001  # of what the trace is written to
        fallback.log_traceback(error)
