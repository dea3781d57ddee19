"""Whether the program's own calls are timed because its first call cannot be repeated.

If Dynamo breaks a graph before the call is over, anything may happen between the graphs, so no call is made
just for timing.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchrlopt.api.whole_call import is_decided_by_graphs
from torchrlopt.judge.own_calls import Trial
from torchrlopt.judge.policy import Policy
from torchrlopt.report import Report

__all__ = ["Trial", "needs_trial"]


def needs_trial(reports: Sequence[Report], policy: Policy) -> bool:
    """Whether Dynamo broke a graph of the call, and the graphs' savings alone do not decide."""
    return any(report.cut for report in reports) and not is_decided_by_graphs(reports, policy)
