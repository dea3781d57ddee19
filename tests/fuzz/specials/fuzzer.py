"""NaN, infinities, -0, subnormal and huge numbers in inputs and weights: non-finite results stay non-finite.

A model is compiled for finite numbers, as a user does, and then called with special numbers in some places.
In every executor exactly the expected elements must be NaN or infinite. Elements are ignored if they are
infinite or NaN only because float32 overflowed on one of the two computation paths: in float64 they are
finite.

Only exact substitutions are used (`numerics="strict"`). Substitutions that are equal over the real numbers
may turn an infinity into NaN and vice versa: x * y + x * x is not x * (y + x) if x is infinite.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.kept import Case, format_case
from tests.fuzz.outcome import Outcome
from tests.fuzz.shards import first_line
from tests.fuzz.specials.models import MODELS, Weighted
from torchrlopt.compile import backend
from torchrlopt.errors import LoweringError, UnsupportedError, VerificationError

EXECUTORS = ("eager", "onnxruntime", "openvino")
CALLS = 40  # of a compiled model in a case
VALUES = {
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0": -0.0, "subnormal": 1e-40, "huge": 2e38,
    "-huge": -2e38,
}  # fmt: skip
OPTIONS: dict[str, Any] = {
    "on_error": "raise", "measure": False, "cache": False, "prices": "typical", "numerics": "strict",
}  # fmt: skip
PAIRS = list(itertools.product(MODELS, EXECUTORS))

#: Of finite numbers.
_RTOL, _ATOL = 1e-4, 1e-5

#: What is known to differ, and why. The case is run, and skipped with the reason only where it goes wrong.
_ZERO = "ONNX has no operator for it, and our formula does not look at the sign of zero"
KNOWN = {
    ("half", "openvino"): "OpenVINO leaves out a cast to float16 and back",
    ("atan2", "onnxruntime"): _ZERO,
    ("atan2", "openvino"): _ZERO,
}
_INSIDE = "an infinity that arises inside, of finite inputs, is not seen"
_SUBNORMAL = "OpenVINO takes subnormal numbers for 0"


def count() -> int:
    """Cases until all models have been run in all executors."""
    return len(PAIRS)


class SpecialsFuzzer:
    """One case is a model in an executor, called with several tensors of special numbers."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def run(self, index: int) -> Outcome:
        """Compile, then call; the first difference is the outcome."""
        name, executor = PAIRS[index % len(PAIRS)]
        draw = random.Random(f"{self._seed}/{index}")
        counts: Counter[str] = Counter()
        plantings = [planting(name, draw) for _ in range(CALLS)]
        try:
            found = first_difference(name, executor, plantings)
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            cause = getattr(error, "inner_exception", error)  # Dynamo packs what a backend raises
            if isinstance(cause, (LoweringError, UnsupportedError)):
                return Outcome("skipped", f"{executor}: {cause.what}")
            text = format_case("specials", {"model": name, "executor": executor, "planted": plantings[0]})
            return Outcome("raised", f"{name} in {executor}: {first_line(cause)}", text)
        counts[f"{executor} calls"] += CALLS
        if found is None:
            return Outcome("right", counts=counts)
        planted, difference = found
        reason = KNOWN.get((name, executor), "")
        if executor == "openvino" and "subnormal" in planted:
            reason = _SUBNORMAL
        if executor != "eager" and not any(word in planted for word in ("nan", "inf")):
            reason = reason or (_INSIDE if "huge" in planted else "")
        if reason:
            return Outcome("skipped", reason, counts=counts)
        fields = {"model": name, "executor": executor, "planted": planted}
        reason = f"{name} in {executor}, {planted}: {difference}"
        return Outcome("wrong", reason, format_case("specials", fields), counts)


def planting(name: str, draw: random.Random) -> str:
    """Where special numbers go: `tensor place value`, several of them separated by commas.

    Tensors are counted over inputs and weights; a place is the number of an element, `*` all of them.
    """
    model = MODELS[name]
    shapes = (*model.inputs, *model.weights)
    planted = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        # Inputs as often as weights.
        is_weight = bool(model.weights) and draw.random() < 0.5
        tensors = range(len(model.inputs), len(shapes)) if is_weight else range(len(model.inputs))
        tensor = draw.choice(tensors)
        value = draw.choice(list(VALUES))
        # Nothing but zeros and -inf would be a mask, see `plain_numbers`.
        is_everywhere = draw.random() < 0.1 and value != "-0"
        place = "*" if is_everywhere else str(draw.randrange(math.prod(shapes[tensor])))
        planted.append(f"{tensor} {place} {value}")
    return ", ".join(planted)


def first_difference(name: str, executor: str, plantings: Sequence[str]) -> tuple[str, str] | None:
    """The first planting with which an executor gives other results than eager PyTorch, and how."""
    torch._dynamo.reset()
    backend.reset()
    model = MODELS[name]
    module = Weighted(model, 0).eval()
    draw = torch.Generator().manual_seed(1)
    inputs = [torch.randn(shape, generator=draw) for shape in model.inputs]
    run = torch.compile(module, backend="rlopt", options={**OPTIONS, "executor": executor}, dynamic=False)
    weights = [weight.detach().clone() for weight in module.weights]
    with torch.no_grad():
        run(*inputs)
        for planted in ("", *plantings):
            given = [tensor.clone() for tensor in inputs]
            for weight, original in zip(module.weights, weights, strict=True):
                weight.copy_(original)
            _plant([*given, *module.weights], planted)
            expected = _tuple(module(*given))
            try:
                got = _tuple(run(*given))
            except VerificationError as error:  # users get the original: the difference is there all the same
                return planted, f"{error.what}, {error.where}"
            if told := difference(expected, got, [None] * len(got)):
                wide = _tuple(copy.deepcopy(module).double()(*[tensor.double() for tensor in given]))
                told = difference(expected, got, wide, with_numbers="huge" not in planted)
            if told:
                return planted, told
    return None


def _tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _plant(tensors: Sequence[Tensor], planted: str) -> None:
    for each in planted.split(", ") if planted else ():
        tensor, place, value = each.split(" ")
        where = slice(None) if place == "*" else int(place)
        tensors[int(tensor)].view(-1)[where] = VALUES[value]


def difference(
    expected: Sequence[Tensor],
    got: Sequence[Tensor],
    wide: Sequence[Tensor | None],
    with_numbers: bool = True,
) -> str:
    """How the results differ in NaN, infinities or finite numbers; empty where they do not.

    Args:
        expected: of eager PyTorch.
        got: of the rewritten graph.
        wide: of eager PyTorch in float64, or None for each: what overflowed in float32 only does not count.
        with_numbers: compare finite numbers; huge ones may have cancelled each other, up to their rounding.
    """
    for number, (a, b, exact) in enumerate(zip(expected, got, wide, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"result {number}: {a.dtype}{list(a.shape)} expected, {b.dtype}{list(b.shape)} came"
        if not a.is_floating_point():
            wrong = a != b
        else:
            close = torch.isclose(b, a, rtol=_RTOL, atol=_ATOL * _scale(a), equal_nan=True)
            wrong = ~close
            if exact is not None:  # both finite, or not finite in float64 either
                both = a.isfinite() & b.isfinite()
                wrong &= (both & with_numbers) | (~exact.isfinite() & ~both)
        if bool(wrong.any()):
            at = int(wrong.flatten().nonzero()[0])
            return f"result {number}, element {at}: {a.flatten()[at]} expected, {b.flatten()[at]} came"
    return ""


def _scale(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return max(1.0, float(finite.abs().max())) if finite.numel() else 1.0


def replay(case: Case) -> str:
    """How a kept case goes wrong; empty where it does not."""
    fields = case.fields
    try:
        found = first_difference(fields["model"], fields["executor"], [fields["planted"]])
    except Exception as error:
        if isinstance(getattr(error, "inner_exception", error), (LoweringError, UnsupportedError)):
            return ""  # by now the executor refuses the model
        raise
    return "" if found is None else found[1]
