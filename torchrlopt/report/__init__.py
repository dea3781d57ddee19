"""What happened to a graph, for people: the report, and the page that shows it."""

from torchrlopt.report.drawing import Drawing, DrawnStep, Operator, Source
from torchrlopt.report.executors import Choice, MeasuredPlan, Part
from torchrlopt.report.report import Kept, Report, Timing
from torchrlopt.report.search import SearchRecord
from torchrlopt.report.steps import LeftOut, ReportStep, StepGroup

__all__ = [
    "Choice",
    "Drawing",
    "DrawnStep",
    "Kept",
    "LeftOut",
    "MeasuredPlan",
    "Operator",
    "Part",
    "Report",
    "ReportStep",
    "SearchRecord",
    "Source",
    "StepGroup",
    "Timing",
]
