"""A fuzzer with every kind of failure, for the tests of the machinery."""

from __future__ import annotations

import os
import time

from tests.fuzz.kept import Case, format_case
from tests.fuzz.outcome import Outcome


class Troubled:
    """Does what the number of the case says."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def run(self, index: int) -> Outcome:
        if index == 3:
            os.abort()
        if index == 5:
            time.sleep(600)
        if index == 7:
            raise ValueError("seven\nand more")
        kind = "wrong" if index == 8 else "skipped" if index == 9 else "right"
        return Outcome(kind, "told", format_case("rules", {"n": "8"}) if index == 8 else "")


def replay(case: Case) -> str:
    return f"replayed {case.fields['n']}"
