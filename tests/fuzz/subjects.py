"""The table of the fuzzers, one row each. Their modules are imported on demand."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, cast

from tests.fuzz.kept import Case
from tests.fuzz.outcome import Fuzzer


@dataclasses.dataclass(frozen=True)
class Subject:
    """A row.

    Attributes:
        title: what is fuzzed, for people.
        fuzzer: where it is, `module:class`; the module has `replay`, too.
        cases: of a run that says enough; None for as many as the module's `count` says.
        slice_size: cases in one process.
        limit_s: a case that takes longer has hung.
    """

    title: str
    fuzzer: str
    cases: int | None
    slice_size: int
    limit_s: float

    @property
    def _module(self) -> Any:
        return importlib.import_module(self.fuzzer.partition(":")[0])

    @property
    def num_cases(self) -> int:
        """Cases of a whole run."""
        return self.cases if self.cases is not None else int(self._module.count())

    def make(self, seed: int) -> Fuzzer:
        """The fuzzer; called in the process that runs it."""
        made: Callable[[int], Fuzzer] = getattr(self._module, self.fuzzer.partition(":")[2])
        return made(seed)

    def replay(self, case: Case) -> str:
        """How a kept case goes wrong; empty where it does not."""
        return cast("str", self._module.replay(case))


SUBJECTS = {
    "rules": Subject(
        "every substitution in random graphs, random walks", "tests.fuzz.rules.fuzzer:RulesFuzzer",
        20_000, 500, 60,
    ),
    "opinfo": Subject("PyTorch's samples of every operator", "tests.fuzz.opinfo:OpInfoFuzzer", None, 40, 300),
    "specials": Subject(
        "NaN, infinities, -0, subnormal and huge numbers", "tests.fuzz.specials.fuzzer:SpecialsFuzzer",
        None, 60, 300,
    ),
    "files": Subject("ONNX files, changed", "tests.fuzz.files.fuzzer:FilesFuzzer", 1_000, 100, 120),
    "precision": Subject(
        "random graphs within error budgets", "tests.fuzz.precision:PrecisionFuzzer", 2_000, 200, 60
    ),
}  # fmt: skip
