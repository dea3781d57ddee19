"""Profiling: times the nodes of traced models inside their program, on variants from random walks."""

from torchrlopt.machine.profiling.session import Timed, profile
from torchrlopt.machine.profiling.sources import Source, trace
from torchrlopt.machine.profiling.timing import run_times
from torchrlopt.machine.profiling.walks import variant, walk

__all__ = ["Source", "Timed", "profile", "run_times", "trace", "variant", "walk"]
