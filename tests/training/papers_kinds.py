"""Kinds of runs for tests; new processes import this module and little else."""

from __future__ import annotations

import time
from pathlib import Path

from training.papers.runner import Result, Work, kind


@kind()
def doubled(work: Work, number: float) -> Result:
    """Twice a number, and what is needed."""
    return {"found": 2 * number, "needed": [each["found"] for each in work.needed]}


@kind()
def failing(work: Work, out: str, number: int) -> Result:
    """The first one fails, and the others wait for it; all say that they were begun."""
    (Path(out) / f"begun{number}").touch()
    if number == 0:
        raise OSError("on purpose")
    while not (Path(out) / "begun0").exists():
        time.sleep(0.01)
    time.sleep(0.5)
    return {}


@kind(measures=True)
def timed(work: Work) -> Result:
    """A measurement."""
    return {}
