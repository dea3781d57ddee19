"""A compiled graph at call time: the rewritten graph, with the original as a fallback.

If a call fails in any way, the caller gets the original's result. Expressions over weights are evaluated
again when a weight has changed, and a graph that was right for the first weights may be wrong for others:
some of the calls that evaluate them are compared with the original.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchrlopt.compile.fallback import WARNINGS, described, warn_of
from torchrlopt.errors import BudgetError, UnsupportedError, VerificationError, WeightsError
from torchrlopt.executors.registry import Lowered
from torchrlopt.judge import right
from torchrlopt.judge.budget import Budget
from torchrlopt.options import OnError
from torchrlopt.processes import renew_locks_in_forks
from torchrlopt.report import PrecisionRecord, Report, Status
from torchrlopt.torch_private.tensors import version_of


@dataclasses.dataclass(frozen=True)
class Lower:
    """What belongs to a graph that computes partly in lower precision.

    Attributes:
        budget: of its error.
        exact: builds the same graph in the types of the model.
        narrow: takes an error that was too large, builds the graph with fewer calls in lower precision, and
            returns it with its record, or None if nothing is left to lower; None once the inputs of calls are
            no longer there.
    """

    budget: Budget
    exact: Callable[[], Lowered]
    narrow: Callable[[float], tuple[Lowered, PrecisionRecord] | None] | None = None


MEASURED: contextvars.ContextVar[Callable[[Compiled, float], None] | None] = contextvars.ContextVar(
    "torchrlopt_measured", default=None
)
"""Takes the error of each graph that is called with a budget; None unless a model is calibrated."""


class Compiled:
    """A rewritten graph in AOTAutograd's calling convention, with its report.

    Args:
        lowered: the rewritten graph.
        aten: the original, as an ATen graph.
        status: number of sets of weights so far, and why the original runs once it does; shared with all
            reports of the graph.
        on_error: "fallback" continues with the original if a call fails, "raise" raises.
        verify: whether calls with new weights are compared with the original.
        note: called with an error in a call that is not the caller's fault, and the arguments.
        num_added: outputs at the end that are not returned to the caller.
        lower: the budget of a graph that computes partly in lower precision, and what builds the exact one.
            Its error is measured in some of the later calls; beyond the budget, the exact one takes over.

    Attributes:
        lowered: the rewritten graph; None once a call has failed.
        status: as above.
        report: of the compilation, once that is finished.
        is_faster_for: whether it is faster than the original, by sizes, see `by_size`; set by calls.
        compares_next: the thread whose next call compares its outputs with the original's; None for none.
    """

    _boxed_call = True

    # PyTorch wraps us as functools.wraps does: copies of a dictionary would keep alive what we let go.
    __slots__ = (
        "__weakref__",
        "_aten",
        "_evaluations",
        "_lock",
        "_lower",
        "_note",
        "_num_added",
        "_num_calls",
        "_on_error",
        "_verify",
        "compares_next",
        "is_faster_for",
        "lowered",
        "report",
        "status",
    )

    def __init__(
        self,
        lowered: Lowered,
        aten: torch.fx.GraphModule,
        status: Status,
        on_error: OnError = "fallback",
        verify: bool = True,
        note: Callable[[Exception, Sequence[Any]], None] = lambda error, args: None,
        num_added: int = 0,
        lower: Lower | None = None,
    ) -> None:
        self.lowered: Lowered | None = lowered
        self.status = status
        self.report: Report | None = None
        self.is_faster_for: dict[tuple[int, ...], bool] = {}
        self.compares_next: int | None = None
        self._aten = aten
        self._on_error = on_error
        self._verify = verify
        self._note = note
        self._num_added = num_added
        self._lower = lower
        self._num_calls = 0
        self._evaluations = _evaluations(lowered)
        self._lock = threading.Lock()
        renew_locks_in_forks(self, "_lock")

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Run on a list of arguments, which is emptied."""
        outputs = self.run(args)
        args.clear()
        return outputs

    def run(self, args: Sequence[Any]) -> Sequence[Any]:
        """Run on arguments that the caller keeps."""
        lowered = self.lowered
        outputs: Sequence[Any]
        if lowered is None:
            outputs = self._aten.forward(*args)
        else:
            try:
                outputs = lowered(*args)
                if _evaluations(lowered) != self._evaluations:
                    self._note_weights(lowered, args, outputs)
                if self._lower is not None:
                    self._measure(self._lower, lowered, args, outputs)
                if self.compares_next is not None and self.compares_next == threading.get_ident():
                    self.compares_next = None
                    self._compare(lowered, args, outputs, "a call of other sizes")
            except Exception as error:
                if self._on_error == "raise":
                    self._note(error, args)
                    raise
                outputs = self._run_original(error, args, lowered)
        return outputs[: -self._num_added] if self._num_added else outputs

    def _is_sampled(self) -> bool:
        """Whether the error of this call is measured: of calls 2, 4, 8 and so on, as inputs may change."""
        self._num_calls += 1  # a lost update of another thread does no harm
        return self._num_calls > 1 and self._num_calls & (self._num_calls - 1) == 0

    def _run_original(self, error: Exception, args: Sequence[Any], lowered: Lowered) -> Sequence[Any]:
        """Return the original's outputs; drop the rewritten graph unless the weights are to blame.

        If the original raises too, the call was wrong, not the graph: the caller gets that error.
        """
        traceback.clear_frames(error.__traceback__)  # free the call's results: the original needs the room
        outputs: Sequence[Any] = self._aten.forward(*args)
        lower = self._lower
        if self.lowered is not lowered:  # another thread has dropped it
            return outputs
        if isinstance(error, BudgetError) and lower is not None:
            try:
                self._be_exact(error, lower)
            except Exception as failed:  # noqa: BLE001  # such as a lack of memory
                error = failed
            else:
                return outputs
        if isinstance(error, WeightsError):
            warn_of(error)
            return outputs
        self._note(error, args)
        warn_of(error, has_repro=self.status.repro is not None)
        self.lowered = None
        self.status.keep_original(f"a call failed: {described(error)}")
        return outputs

    def _measure(self, lower: Lower, lowered: Lowered, args: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Measure the error of a call: of all if the model is calibrated, else of some."""
        note = MEASURED.get()
        if note is not None:
            exact = right.structured_like(self._aten.forward, outputs, args, "calibration")
            try:
                found = lower.budget.error(outputs, exact)
            except UnsupportedError:  # such as outputs that are not finite
                found = math.inf
            note(self, found)
        elif self._is_sampled():
            self.end_calibration()
            self._compare(lowered, args, outputs, "a later call")

    def is_beyond(self, error: float) -> bool:
        """Whether an error is larger than the budget."""
        return self._lower is not None and error > self._lower.budget.max_error

    def narrow(self, error: float, is_last: bool) -> None:
        """Compute less in lower precision, as it had this error; nothing, if this is the last try."""
        assert self._lower is not None, "it has a budget"
        lower = self._lower
        narrower = None if is_last or lower.narrow is None else lower.narrow(error)
        if narrower is None:
            what, limit = "the error is beyond the budget", f"at most {lower.budget.max_error:.3g}"
            beyond = BudgetError(what, where="calibration", expected=limit, got=f"{error:.3g}")
            self._be_exact(beyond, lower)
        else:
            self.lowered, record = narrower
            self._evaluations, self.status.precision = _evaluations(self.lowered), (record,)

    def end_calibration(self) -> None:
        """Free what only `narrow` needs."""
        if self._lower is not None and self._lower.narrow is not None:
            self._lower = dataclasses.replace(self._lower, narrow=None)

    def _be_exact(self, error: BudgetError, lower: Lower) -> None:
        """Compute in the types of the model from now on."""
        exact = lower.exact()
        self.status.exact_since = described(error)
        self.status.precision = tuple(each.without_effect(error.what) for each in self.status.precision)
        WARNINGS.warn(error.what, described(error), "computes in float32 from now on")
        self.lowered, self._lower, self._evaluations = exact, None, _evaluations(exact)

    def replace(self, lowered: Lowered | None, num_evaluations: int) -> None:
        """Run another graph, or the original; evaluations beyond that number are of new weights."""
        with self._lock:
            self.lowered, self._evaluations = lowered, num_evaluations

    def _note_weights(self, lowered: Lowered, args: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Count the sets of weights; compare the outputs for the second, fourth, eighth and so on.

        Within a budget for each: the calls in lower precision were chosen by the first set.
        """
        with self._lock:
            if self.lowered is not lowered:  # a call that was under way when another took its place
                return
            new = _evaluations(lowered) - self._evaluations
            self._evaluations += new
            before, now = self.status.weight_sets, self.status.weight_sets + new
            self.status.weight_sets = now
            is_due = self._verify and (self._lower is not None or before.bit_length() != now.bit_length())
        if is_due:
            self.status.checked_sets += self._compare(lowered, args, outputs, "a call with new weights")

    def _compare(self, lowered: Lowered, args: Sequence[Any], outputs: Sequence[Any], what: str) -> bool:
        """Compare with the original; if that fails, retry, unless another thread writes to the weights."""
        try:
            return self._confirm(outputs, args, what)
        except VerificationError:
            before = _versions(args)
            try:
                return self._confirm(lowered(*args), args, what)
            except VerificationError:
                if _versions(args) == before:  # else another thread is changing them
                    raise
                return False

    def _confirm(self, outputs: Sequence[Any], args: Sequence[Any], what: str) -> bool:
        """Compare; False if the original cannot be run, for example for lack of memory."""
        with contextlib.suppress(UnsupportedError):
            if self._lower is not None:
                self._lower.budget.confirm(self._aten.forward, outputs, args, what)
                return True
            right.confirm(self._aten, self._aten.forward, outputs, args, what)
            return True
        return False


def _versions(args: Sequence[Any]) -> list[int]:
    """Return how often each tensor was written to."""
    return [version_of(x) for x in args if isinstance(x, torch.Tensor) and not x.is_inference()]


def _evaluations(lowered: Lowered | None) -> int:
    """How often expressions over weights were evaluated; an executor without any may return a function."""
    return getattr(lowered, "num_evaluations", 0)
