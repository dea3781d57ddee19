"""Decides whether a candidate is worth adding: its gain, and whether the library already covers it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from torchrlopt import _C
from training.generate import _enumerate
from training.generate.generalise import ELEMENTWISE, FUNCTION
from training.generate.pairs import Pair, Shape, world_inputs

#: Shapes per world at which costs are compared: small, where launches dominate, and large.
SIZES: dict[str, tuple[dict[str, Shape], ...]] = {
    "matrix": tuple({"a": (n, n), "s": (1,), "eye": (n, n)} for n in (16, 128)),
    "tensor": tuple({"x": (n, n, n), "w": (n, n)} for n in (8, 48)),
    "image": tuple(
        {"x": (1, c, n, n), "w": (c, c, 3, 3), "p": (c, c, 1, 1), "g": (c, c // 2, 3, 3), "r": (c, c, 1, 3),
         "s": (1,), "unit": (c, c, 1, 1), "mean": (c, c // 2, 3, 3)}
        for c, n in ((8, 8), (64, 28))
    ),
}  # fmt: skip
MIN_GAIN = 0.005  # relative; smaller gains are rounding errors


@dataclass(frozen=True)
class Setting:
    """Shapes and weights for which the cost of a pair is computed."""

    shapes: tuple[Shape, ...]
    statics: tuple[bool, ...]


@cache
def _sort_shapes(world: str, size: int) -> tuple[Shape, ...]:
    by_name = SIZES[world][size]
    firsts: dict[int, str] = {}
    for each in world_inputs(world):
        firsts.setdefault(each.sort, each.name)
    return tuple(by_name.get(firsts[sort], ()) for sort in sorted(firsts))


def settings(pair: Pair) -> Iterator[Setting]:
    """All sizes, with no input, each input, and all but one input as weights."""
    world = pair.before.world
    used = sorted(pair.before.data_inputs)
    count = len(world_inputs(world))
    chosen: list[frozenset[int]] = [frozenset(), *(frozenset({i}) for i in used)]
    if len(used) > 2:
        chosen += [frozenset(used) - {i} for i in used]
    if len(used) == 1:
        chosen = chosen[:1]
    for size in range(len(SIZES[world])):
        for statics in chosen:
            yield Setting(_sort_shapes(world, size), tuple(i in statics for i in range(count)))


@dataclass(frozen=True)
class Gain:
    """The best relative gain of a direction, and the setting that achieves it."""

    value: float
    setting: Setting | None


def best_gain(pair: Pair, cost: _C.CostModel) -> Gain:
    """The direction's best saving relative to the cost before; negative if it always loses."""
    best = Gain(-float("inf"), None)
    for setting in settings(pair):
        before = cost.total(pair.before.graph(0, setting.shapes, setting.statics))["time_us"]
        after = cost.total(pair.after.graph(0, setting.shapes, setting.statics))["time_us"]
        gain = (before - after) / before if before > 0 else 0.0
        if gain > best.value:
            best = Gain(gain, setting)
    return best


def is_instance(pair: Pair, library: _C.Library) -> bool:
    """Whether one step of the library turns before into after, at the shapes of the second test."""
    trial = 1
    return _enumerate.derive(pair.before.graph(trial), pair.after.graph(trial), library, 1) is not None


def is_derivable(pair: Pair, library: _C.Library, max_steps: int = 3, max_graphs: int = 40) -> bool:
    """Whether a few steps of the library turn before into after, regardless of cost."""
    steps = _enumerate.derive(pair.before.graph(1), pair.after.graph(1), library, max_steps, max_graphs)
    return steps is not None


def serves(pair: Pair) -> bool:
    """Keeps only patterns that occur in models and help a search; each one slows down every search."""
    inputs = world_inputs(pair.before.world)
    before = [line.op for line in pair.before.lines("t")]
    after = [line.op for line in pair.after.lines("u")]
    # Patterns with literal numbers do not occur in models.
    if any(inputs[i].number is not None for i in pair.before.inputs):
        return False
    # Nor do larger ones with enlarged kernels, sums over axes or scales, except a scale next to a concat.
    if pair.size > 4:
        is_scale = any(inputs[i].shape == (1,) for i in pair.before.inputs)
        if {"Pad", "ReduceSum"} & set(before) or (is_scale and "Concat" not in before):
            return False
    num_products = [sum(op in ("MatMul", "Conv") for op in side) for side in (before, after)]
    # Small patterns are cheap to match.
    if pair.size <= 5:
        return True
    # A large one is worth it if it saves a product,
    if num_products[1] < num_products[0]:
        return True
    # or if it contains only concats, elementwise operators and functions.
    return "Concat" in before and set(before) <= {"Concat", *ELEMENTWISE, FUNCTION}


def is_movement(pair: Pair) -> bool:
    """Whether the pattern only moves data around functions; such moves should cancel in one step."""
    movement = {"Transpose", "Reshape", "Concat", "Split", "Slice", FUNCTION}
    return all(line.op in movement for line in pair.before.lines("t"))


def is_reached_downhill(pair: Pair, setting: Setting, library: _C.Library, cost: _C.CostModel) -> bool:
    """Whether cost-reducing steps of the library take before to a graph as cheap as after.

    Zero-cost steps count as well, unless the pattern moves data: searches that only take cost-reducing steps,
    as most do, would not find those.
    """
    before = pair.before.graph(0, setting.shapes, setting.statics)
    after = pair.after.graph(0, setting.shapes, setting.statics)
    if not is_movement(pair) and _enumerate.derive(before, after, library, 3, 60, cost) is not None:
        return True
    goal = cost.total(after)["time_us"]
    found = _C.search(before, library, cost, searcher="greedy", budget_ms=0.0, budget_steps=40)
    return bool(found["cost_after_us"] <= goal * (1 + MIN_GAIN))
