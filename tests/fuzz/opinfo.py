"""PyTorch's own samples of every operator (OpInfo) through torch.compile, against eager PyTorch.

Samples that torch.compile refuses or computes differently without us (`aot_eager`, `eager`) are skipped, and
so are those for which eager PyTorch is not deterministic.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.fuzz.kept import Case, format_case
from tests.fuzz.outcome import FAILURES, Outcome
from tests.fuzz.shards import first_line
from torchrlopt.compile import backend

SAMPLES = 3  # of an operator and a dtype
OPTIONS: dict[str, Any] = {"on_error": "raise", "measure": False, "cache": False, "prices": "typical"}
_DTYPES = (torch.float32, torch.int64, torch.bool)
_MOST_SAMPLES = 64  # drawn, from which SAMPLES are picked
_CONTROLS = ("aot_eager", "eager")
#: An error so many times that of eager PyTorch, both against float64, is one of rounding.
_ROUNDING = 8.0

Function = Callable[..., Any]


@functools.cache
def operators() -> list[tuple[Any, torch.dtype]]:
    """All operators with a dtype in which they are run, in a fixed order.

    First each operator in the first dtype that it has, then again in the others.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    rows = []
    for op in sorted(op_db, key=lambda op: (op.name, op.variant_test_name)):
        dtypes = [dtype for dtype in _DTYPES if dtype in op.supported_dtypes("cpu")]
        rows += [(number, op, dtype) for number, dtype in enumerate(dtypes)]
    return [(op, dtype) for _, op, dtype in sorted(rows, key=lambda row: min(row[0], 1))]


def count() -> int:
    """Number of cases."""
    return len(operators())


class OpInfoFuzzer:
    """One case is an operator in a dtype, with some of its samples.

    Args:
        seed: of the samples and of the choice among them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def run(self, index: int) -> Outcome:
        """Run the samples; the first failure is the outcome, and "skipped" if all are."""
        outcomes = [run_sample(index, self._seed, number) for number in self._chosen(index)]
        counts = sum((each.counts for each in outcomes), Counter())
        failed = next((each for each in outcomes if each.kind in FAILURES), None)
        if failed is not None:
            return dataclasses.replace(failed, counts=counts)
        if outcomes and all(each.kind == "skipped" for each in outcomes):
            return Outcome("skipped", outcomes[-1].reason, counts=counts)
        return Outcome("right", counts=counts)

    def _chosen(self, index: int) -> list[int]:
        number = len(_samples(index, self._seed))
        draw = random.Random(f"{self._seed}/{index}")
        return sorted(draw.sample(range(number), min(number, SAMPLES)))


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


@functools.lru_cache(maxsize=1)
def _samples(index: int, seed: int) -> list[Any]:
    op, dtype = operators()[index]
    torch.manual_seed(seed)
    random.seed(seed)  # some samples are drawn with it
    return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), _MOST_SAMPLES))


def run_sample(index: int, seed: int, number: int) -> Outcome:
    """One sample of an operator."""
    op, dtype = operators()[index]
    function, tensors = _as_function(op, _samples(index, seed)[number])
    try:
        expected = _call(function, tensors)
        again = _call(function, tensors)
    except Exception as error:  # noqa: BLE001 - what an operator refuses, it may refuse in any way
        return Outcome("skipped", f"eager PyTorch: {first_line(error)}")
    if difference(expected, again, 0.0, 0.0):
        return Outcome("skipped", "eager PyTorch gives another result each time")
    kind, reason = "right", ""
    try:
        got = _compiled(function, tensors, "rlopt", OPTIONS)
        reason = _judge(op, dtype, function, tensors, expected, got)
        kind = "wrong" if reason else "right"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        cause = getattr(error, "inner_exception", error)  # Dynamo packs what a backend raises
        kind, reason = "raised", first_line(cause)
    reports = backend.reports()
    counts = Counter(
        graphs=len(reports),
        rewritten=sum(report.kept == "rewritten" for report in reports),
        steps=sum(len(report.steps) for report in reports),
    )
    if kind == "right":
        return Outcome("right", counts=counts)
    if told := _control(function, tensors, expected, _tolerance(op, dtype)):
        return Outcome("skipped", told, counts=counts)
    fields = {
        "operator": str(op.name),
        "variant": str(op.variant_test_name),
        "dtype": str(dtype).removeprefix("torch."),
        "seed": str(seed),
        "sample": str(number),
    }
    return Outcome(
        "wrong" if kind == "wrong" else "raised",
        f"{_name(op)} {dtype}, sample {number}: {reason}",
        format_case("opinfo", fields),
        counts,
    )


def _as_function(op: Any, sample: Any) -> tuple[Function, list[torch.Tensor]]:
    """The call of an operator as a function of its tensors."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        return op.op(first, *args, **kwargs)

    return call, [leaves[place] for place in places]


def _call(function: Function, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Results for copies of the tensors, with the generator of random numbers at its start."""
    torch.manual_seed(0)
    with torch.no_grad():
        return list(tree_flatten(function(*[tensor.clone() for tensor in tensors]))[0])


def _compiled(
    function: Function, tensors: Sequence[torch.Tensor], name: str, options: dict[str, Any] | None = None
) -> list[Any]:
    torch._dynamo.reset()
    backend.reset()
    run = torch.compile(function, backend=name, options=options, dynamic=False)
    return _call(run, tensors)


def _control(
    function: Function, tensors: Sequence[torch.Tensor], expected: Sequence[Any], tolerance: float
) -> str:
    """What torch.compile does wrong without us; empty where it is right."""
    for name in _CONTROLS:
        try:
            got = _compiled(function, tensors, name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not ours
            return f"{name}: {first_line(error)}"
        if found := difference(expected, got, tolerance, tolerance):
            return f"{name}: {found}"
    return ""


def _tolerance(op: Any, dtype: torch.dtype) -> float:
    """The widest that the operator's own tests allow, else torch.testing's for the dtype."""
    from torch.testing._internal.common_device_type import toleranceOverride

    found = [1.3e-6 if dtype is torch.float32 else 0.0]
    for info in op.decorators:
        for each in getattr(info, "decorators", ()):
            if isinstance(each, toleranceOverride) and dtype in each.d and info.device_type in (None, "cpu"):
                found += [each.d[dtype].atol, each.d[dtype].rtol]
    return max(found)


def _judge(
    op: Any,
    dtype: torch.dtype,
    function: Function,
    tensors: Sequence[torch.Tensor],
    expected: Sequence[Any],
    got: Sequence[Any],
) -> str:
    """How the results differ beyond the operator's tolerance and beyond rounding."""
    tolerance = _tolerance(op, dtype)
    found = difference(expected, got, tolerance, max(tolerance, 1e-5))
    if not found or dtype is not torch.float32:
        return found
    try:
        wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
        reference = _call(function, wide)
    except Exception:  # noqa: BLE001 - it has no float64 form: the tolerance decides
        return found
    return "" if _is_rounding(reference, expected, got) else found


def _is_rounding(reference: Sequence[Any], expected: Sequence[Any], got: Sequence[Any]) -> bool:
    """Whether the error against float64 is not much more than that of eager PyTorch."""
    for exact, a, b in zip(reference, expected, got, strict=True):
        if not isinstance(a, torch.Tensor) or not a.is_floating_point():
            if difference([a], [b], 0.0, 0.0):
                return False
            continue
        finite = a.isfinite() & exact.isfinite()
        if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()) or not bool(finite.any()):
            return False
        scale = float(exact[finite].abs().max())
        own = float((a.double() - exact)[finite].abs().max())
        if float((b.double() - exact)[finite].abs().max()) > max(_ROUNDING * own, 1e-6 * scale):
            return False
    return True


def difference(expected: Sequence[Any], got: Sequence[Any], rtol: float, atol: float) -> str:
    """How two lists of results differ; empty where they agree."""
    if len(expected) != len(got):
        return f"{len(expected)} results expected, {len(got)} came"
    for number, (a, b) in enumerate(zip(expected, got, strict=True)):
        if not isinstance(a, torch.Tensor):
            if a is not b and a != b:
                return f"result {number}: {a!r} expected, {b!r} came"
            continue
        try:
            torch.testing.assert_close(b, a, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return f"result {number}: {' '.join(str(error).split())[:200]}"
    return ""


def replay(case: Case) -> str:
    """How a kept case goes wrong; empty where it does not."""
    wanted = case.fields["operator"], case.fields["variant"], getattr(torch, case.fields["dtype"])
    index = next(
        index
        for index, (op, dtype) in enumerate(operators())
        if (str(op.name), str(op.variant_test_name), dtype) == wanted
    )
    outcome = run_sample(index, int(case.fields["seed"]), int(case.fields["sample"]))
    return "" if outcome.kind in ("right", "skipped") else outcome.reason
