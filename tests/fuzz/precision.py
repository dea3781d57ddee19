"""Random graphs within random error budgets: what runs keeps the budget, or is exact and says why.

Times of calls are drawn, too: measured ones of such small graphs would lower all of them or none.
"""

from __future__ import annotations

import copy
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import torchrlopt
from tests.fuzz.kept import Case, format_case
from tests.fuzz.outcome import Outcome
from tests.fuzz.shards import first_line
from torchrlopt.compile import backend, mixed_precision, within_budget
from torchrlopt.errors import BudgetError
from torchrlopt.judge.budget import METRICS, rms
from torchrlopt.precision.state import Times

OPTIONS: dict[str, Any] = {
    "executor": "eager", "searcher": "none", "measure": False, "cache": False, "on_error": "raise",
    "prices": "typical",
}  # fmt: skip
WIDTHS = (64, 128)  # 8-bit integers are for the larger one
#: Of values [2, 16, width] or, in images, [1, width, 8, 8]; operands are named by their numbers.
UNARY = ("relu", "gelu", "tanh", "sigmoid", "softmax", "norm", "scale", "turn")
BINARY = ("add", "sub", "mul", "where")
WEIGHTED = {
    False: ("linear", "linear", "mlp", "attention", "product"),
    True: ("conv", "conv", "point", "depth"),
}
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda x, _: x.relu(), "gelu": lambda x, _: functional.gelu(x), "tanh": lambda x, _: x.tanh(),
    "sigmoid": lambda x, _: x.sigmoid(), "scale": lambda x, _: x * 0.37 + 1, "turn": lambda x, _: x.flip(-1),
    "add": lambda x, y: x + y, "sub": lambda x, y: x - 0.5 * y, "mul": lambda x, y: x * y.sigmoid(),
    "where": lambda x, y: torch.where(x > y, x, y),
    "product": lambda x, y: (x @ y.transpose(1, 2) / 8).softmax(-1) @ x,
}  # fmt: skip
INTEGERS: dict[str, Callable[[Tensor], Tensor]] = {
    "argmax": lambda x: x.argmax(-1), "positive": lambda x: x > 0, "order": lambda x: x.argsort(-1)
}  # fmt: skip
_OWN = 8.0  # times PyTorch's own error, and the floor, that the exact graph may have
_FLOOR = 1e-5
_LATER = (-3.0, 0.0, 0.1, 30.0)


class Drawn(nn.Module):
    """Runs the lines of a program.

    Args:
        lines: an operator and the numbers of its operands; the last one names the outputs.
        is_image: whether values are images.
        width: channels.
    """

    def __init__(self, lines: Sequence[str], is_image: bool, width: int) -> None:
        super().__init__()
        self.steps = [line.split() for line in lines]
        self.is_image = is_image
        self.parts = nn.ModuleList(_part(step[0], is_image, width) for step in self.steps)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for (name, *operands), part in zip(self.steps[:-1], self.parts, strict=False):
            values.append(self._step(name, part, [values[int(each)] for each in operands]))
        return tuple(self._output(each, values) for each in self.steps[-1][1:])

    def _step(self, name: str, part: Any, given: Sequence[Tensor]) -> Tensor:
        x = given[0]
        if name in FUNCTIONS:
            return FUNCTIONS[name](x, given[-1])
        if name == "softmax":
            return x.softmax(1 if self.is_image else -1)
        if name == "attention":
            q, k, v = (each(x).unflatten(-1, (4, -1)).transpose(1, 2) for each in part)
            return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        result: Tensor = part(x)
        return result

    def _output(self, what: str, values: Sequence[Tensor]) -> Tensor:
        name, _, number = what.rpartition(":")
        return INTEGERS[name](values[int(number)]) if name else values[int(number)]


def _part(name: str, is_image: bool, n: int) -> nn.Module:
    made = {
        "linear": lambda: nn.Linear(n, n), "attention": lambda: nn.ModuleList(nn.Linear(n, n) for _ in "qkv"),
        "mlp": lambda: nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n)),
        "conv": lambda: nn.Conv2d(n, n, 3, padding=1), "point": lambda: nn.Conv2d(n, n, 1),
        "depth": lambda: nn.Conv2d(n, n, 3, padding=1, groups=n),
        "norm": lambda: nn.BatchNorm2d(n) if is_image else nn.LayerNorm(n),
    }  # fmt: skip
    return made.get(name, nn.Identity)()


class PrecisionFuzzer:
    """One case is a program with its weights, inputs, times and budget."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def run(self, index: int) -> Outcome:
        """Draw a case and run it."""
        draw = random.Random(f"{self._seed}/{index}")
        number = f"{10 ** draw.uniform(-4, -1):.3g}"
        fields = {
            "is_image": str(draw.random() < 0.4), "budget": "bfloat16" if draw.random() < 0.1 else number,
            "has_bfloat16": str(draw.random() < 0.9),
            "metric": draw.choice(("rms", "rms", "top1")), "seed": str(draw.randrange(1 << 20)),
            "saved": str(draw.random() < 0.2), "width": str(draw.choice(WIDTHS)),
        }  # fmt: skip
        lines = program(draw, fields["is_image"] == "True")
        counts: Counter[str] = Counter()
        try:
            found = difference(fields, lines, counts)
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            found = first_line(getattr(error, "inner_exception", error))
            if "integer or bool elements differ" in found:
                return Outcome("skipped", "integers change by rounding in float32", counts=counts)
        if not found:
            return Outcome("right", counts=counts)
        return Outcome("wrong", found, format_case("precision", fields, "; ".join(lines)), counts)


def program(draw: random.Random, is_image: bool) -> list[str]:
    """Lines of a random program, of which most values depend on weights."""
    lines: list[str] = []
    for number in range(draw.randint(3, 10)):
        name = draw.choice(draw.choice((UNARY, BINARY, WEIGHTED[is_image], WEIGHTED[is_image])))
        near = [draw.randint(max(0, number - 3), number) for _ in range(2)]
        lines.append(" ".join([name, *map(str, near[: 2 if name in (*BINARY, "product") else 1])]))
    last = len(lines)
    outputs = [str(last), *(str(draw.randint(1, last)) for _ in range(draw.choice((0, 0, 1, 2))))]
    if draw.random() < 0.25:
        outputs.append(f"{draw.choice(list(INTEGERS))}:{draw.randint(1, last)}")
    return [*lines, " ".join(["out", *dict.fromkeys(outputs)])]


def difference(fields: dict[str, str], lines: Sequence[str], counts: Counter[str]) -> str:
    """What goes wrong in a case; empty if nothing does."""
    is_image, budget, metric = fields["is_image"] == "True", fields["budget"], fields["metric"]
    torch.manual_seed(int(fields["seed"]))
    width = int(fields["width"])
    model = Drawn(lines, is_image, width).eval()
    x = torch.randn(1, width, 8, 8) if is_image else torch.randn(2, 16, width)
    draw = random.Random(fields["seed"])
    torch._dynamo.reset()
    backend.reset()
    before = mixed_precision.measured_times, within_budget.has_bfloat16
    mixed_precision.measured_times = lambda calls, high, low, integers, few, inputs: _times(
        draw, calls, () if low is None else calls, few
    )
    within_budget.has_bfloat16 = lambda device: fields["has_bfloat16"] == "True"
    try:
        max_error: Any = budget if budget == "bfloat16" else float(budget)
        fast = torchrlopt.optimise(model, (x,), max_error=max_error, error_metric=metric, **OPTIONS)
        return _wrong(fast, model, x, fields, counts, draw)
    finally:
        mixed_precision.measured_times, within_budget.has_bfloat16 = before


def _times(
    draw: random.Random, calls: Sequence[Any], lowerable: Sequence[Any], quantisable: Sequence[Any]
) -> Times:
    high = {each.name: draw.uniform(50, 400) for each in calls}
    low = {each.name: high[each.name] * draw.uniform(0.3, 1.1) for each in lowerable}
    return Times(high, low, {each.name: high[each.name] * draw.uniform(0.1, 0.9) for each in quantisable})


def _wrong(
    fast: nn.Module,
    model: nn.Module,
    x: Tensor,
    fields: dict[str, str],
    counts: Counter[str],
    draw: random.Random,
) -> str:
    if fast.report.kept != "rewritten":
        return f"the original is kept: {fast.report.fallback_reason}"
    (record,) = fast.report.precision
    budget, measure = record.max_error, METRICS[fields["metric"]]
    if fields["budget"] not in ("bfloat16", f"{budget:.3g}"):
        return f"the report names another budget: {budget:.3g}"
    with torch.no_grad():
        own, new, reference = model(x), fast(x), _reference(model, x)
    if record.error is None:
        counts["exact"] += 1
        if not record.reason or record.lowered or record.quantised or record.is_split:
            return f"nothing is lowered, and the report does not say why: {record}"
        error, most = rms(new, reference), _OWN * rms(own, reference) + _FLOOR
        return "" if error <= most else f"the exact graph has an error of {error:.3g}, at most {most:.3g}"
    counts["lowered"] += len(record.lowered)
    counts["quantised"] += len(record.quantised)
    error = measure(new, reference)
    if error > budget * (1 + 1e-6):
        return f"the error is {error:.3g}, and {record.error:.3g} in the report"
    if abs(error - record.error) > 1e-3 * record.error + 1e-9:
        return f"the error is {error:.3g}, but {record.error:.3g} in the report"
    told = sum(each.num_lowered + each.num_quantised for each in record.operators)
    named = {*record.lowered, *record.quantised}
    if not (named or record.is_split) or told > len(named) or len(named) > record.num_calls:
        return f"the report counts {told} lowered calls, and names {sorted(named)}"
    if fields["saved"] == "True":
        # A file is made of what the report says.
        counts["saved"] += 1
        with tempfile.TemporaryDirectory() as folder:
            torchrlopt.save(fast, Path(folder) / "model.rlopt")
            again = torchrlopt.load(Path(folder) / "model.rlopt")(x)
        if not all(map(torch.equal, new, again)):
            return (
                f"the saved model computes other numbers: {rms(again, [each.double() for each in new]):.3g}"
            )
    return _later(fast, model, x, budget, measure, counts, draw)


def _later(
    fast: nn.Module, model: nn.Module, x: Tensor, budget: float, measure: Any, counts: Counter[str],
    draw: random.Random,
) -> str:  # fmt: skip
    """What goes wrong after a change of weights, which is compared with the original."""
    weights = list(model.parameters())
    if not weights:
        return ""
    with torch.no_grad():
        draw.choice(weights).mul_(draw.choice(_LATER))
        reference, own = _reference(model, x), model(x)
        try:
            new = fast(x)
        except BudgetError:
            counts["later weights beyond the budget"] += 1
            return ""
    error = measure(new, own)
    counts["later weights within the budget"] += 1
    most = budget * 1.001 + measure(own, reference)
    return "" if error <= most else f"with later weights the error is {error:.3g}"


def _reference(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """The outputs in float64."""
    outputs: tuple[Tensor, ...] = copy.deepcopy(model).double()(x.double())
    return outputs


def replay(case: Case) -> str:
    """How a kept case goes wrong; empty where it does not."""
    return difference(dict(case.fields), case.body.strip().split("; "), Counter())
