"""Reports on what happened to a graph, and the HTML page that shows them."""

from torchrlopt.report.drawing import Drawing, DrawnStep, Operator, Source
from torchrlopt.report.executors import OPEN, Candidate, Choice, MeasuredPlan, Part
from torchrlopt.report.journal import Journal
from torchrlopt.report.parts import Calls, Contribution, Environment, Profile, TimedCall
from torchrlopt.report.precision import Lowered, PrecisionRecord, Rung
from torchrlopt.report.report import Kept, Report, Status, Timing
from torchrlopt.report.search import SearchRecord
from torchrlopt.report.steps import LeftOut, ReportStep, StepGroup

__all__ = [
    "OPEN",
    "Calls",
    "Candidate",
    "Choice",
    "Contribution",
    "Drawing",
    "DrawnStep",
    "Environment",
    "Journal",
    "Kept",
    "LeftOut",
    "Lowered",
    "MeasuredPlan",
    "Operator",
    "Part",
    "PrecisionRecord",
    "Profile",
    "Report",
    "ReportStep",
    "Rung",
    "SearchRecord",
    "Source",
    "Status",
    "StepGroup",
    "TimedCall",
    "Timing",
]
