"""Compares two graphs on the same random data, in the reference interpreter of the tools.

Float64 decides, within 1e-9 of the largest element. If it finds a difference, evaluation modulo a prime shows
whether the algebra is the same: comparisons may flip, and badly conditioned graphs amplify rounding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchrlopt import _C, _tools
from torchrlopt.errors import ModelFormatError

Array = NDArray[Any]
Data = dict[str, Array]
Differ = Callable[[Array, Array], Array]
"""Where two results differ."""

Numbers = Literal["positive", "signed", "special"]

TOLERANCE = 1e-9  # of max(1, largest element), in float64
PRIME = 2**31 - 1
#: Relative change of the inputs that stands for some thousand roundings: a graph that it moves as far as two
#: graphs differ cannot tell them apart.
_SHAKE = 1e-12
_SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1e308, 1.0)
_INDEXING = ("Gather", "GatherElements")
_MAX_INTEGER = 4


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a comparison found.

    Attributes:
        difference: where and how the graphs differ; empty where they do not.
        by: what decided: "float64", "field" (modulo a prime), "bits", "conditioning"; "nothing" where the
            graph before cannot be evaluated on the data.
    """

    difference: str
    by: str


def compare(before: _C.Graph, after: _C.Graph, seed: int, numbers: Numbers) -> Verdict:
    """Evaluate both graphs; "special" numbers ask for the same bits, others for close results."""
    data = draw(before, seed, numbers)
    try:
        old = _tools.evaluate(before, data)
    except ModelFormatError:  # an index into an empty axis
        return Verdict("", "nothing")
    try:
        new = _tools.evaluate(after, data)
    except ModelFormatError as error:
        return Verdict(f"only the graph before can be evaluated: {error}", "float64")
    names = before.output_names
    if numbers == "special":
        return Verdict(_first(names, old, new, _other_bits), "bits")
    difference = _first(names, old, new, _far)
    if not difference:
        return Verdict("", "float64")
    if is_same_algebra(before, after, seed):
        return Verdict("", "field")
    if _is_shaky(before, data, old, new):
        return Verdict("", "conditioning")
    return Verdict(difference, "float64")


def is_same_algebra(before: _C.Graph, after: _C.Graph, seed: int) -> bool | None:
    """Whether the graphs agree modulo a prime, where no number is rounded; None: it cannot be said."""
    data = draw(before, seed, "field")
    try:
        pairs = zip(
            _tools.evaluate(before, data, "field"), _tools.evaluate(after, data, "field"), strict=True
        )
        return all(np.array_equal(a, b) for a, b in pairs)
    except ModelFormatError:  # an operator that has no meaning there
        return None


def draw(graph: _C.Graph, seed: int, numbers: Numbers | Literal["field"]) -> Data:
    """Data for the inputs and weights of a graph, by name.

    Integers are small and index what they index; variances are positive.
    """
    rng = np.random.default_rng(seed)
    limits, variances = _uses(graph)
    data = {}
    for node_id in graph.inputs:
        dtype, dims = graph.type((node_id, 0))
        shape = [int(dim) for dim in dims or ()]
        name = graph.node(node_id)["name"]
        if dtype not in ("f16", "bf16", "f32", "f64"):
            limit = 2 if dtype == "bool" else limits.get(node_id, _MAX_INTEGER)
            data[name] = rng.integers(0, max(limit, 1), shape)
        elif numbers == "field":
            data[name] = rng.integers(0, PRIME, shape)
        elif numbers == "positive" or node_id in variances:
            data[name] = rng.uniform(0.25, 2.25, shape)
        else:
            data[name] = rng.uniform(-2, 2, shape)
            if numbers == "special":
                chosen = rng.random(shape) < 0.3
                data[name] = np.where(chosen, rng.choice(_SPECIAL, shape), data[name])
    return data


def _uses(graph: _C.Graph) -> tuple[dict[int, int], set[int]]:
    """Bounds of the inputs that index, and the inputs that are variances."""
    limits: dict[int, int] = {}
    variances = set()
    for node_id in graph.topological_order():
        node = graph.node(node_id)
        if node["op"] in _INDEXING:
            size = int((graph.type(node["inputs"][0])[1] or ())[node["attrs"]["axis"]])
            index = node["inputs"][1][0]
            limits[index] = min(size, limits.get(index, _MAX_INTEGER))
        elif node["op"] == "BatchNormalization":
            variances.add(node["inputs"][4][0])
    return limits, variances


def _first(names: Sequence[str], old: Sequence[Array], new: Sequence[Array], differ: Differ) -> str:
    """The first difference of any output, on one line."""
    for name, a, b in zip(names, old, new, strict=True):
        if a.shape != b.shape:
            return f"output {name}: shape {a.shape} before, {b.shape} after"
        where = differ(a, b)
        if where.any():
            at = tuple(int(i) for i in np.argwhere(where)[0])
            return f"output {name}, element {list(at)}: {a[at]!r} before, {b[at]!r} after"
    return ""


def _far(a: Array, b: Array) -> Array:
    """What was NaN or infinite may become anything, what was finite stays, and stays close."""
    if a.dtype.kind != "f":
        return np.asarray(a != b)
    finite = np.isfinite(a)
    scale = max(1.0, float(np.max(np.abs(a), initial=0.0, where=finite)))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(finite & ~(np.abs(a - b) <= TOLERANCE * scale))


def _other_bits(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return np.asarray(a != b)
    return np.asarray(~((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))))


def _is_shaky(graph: _C.Graph, data: Data, old: Sequence[Array], new: Sequence[Array]) -> bool:
    """Whether a small change of the inputs moves the results as far as the graphs differ."""
    rng = np.random.default_rng(0)
    shaken = {
        name: array * (1 + _SHAKE * rng.uniform(-1, 1, array.shape)) if array.dtype.kind == "f" else array
        for name, array in data.items()
    }
    moved = _tools.evaluate(graph, shaken)
    for before, after, other in zip(old, new, moved, strict=True):
        if not _far(before, after).any():
            continue
        if before.dtype.kind != "f":
            if np.array_equal(before, other):
                return False
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            finite = np.isfinite(before) & np.isfinite(after)
            apart = float(np.max(np.abs(before - after), initial=0.0, where=finite))
            shift = float(np.max(np.abs(before - other), initial=0.0, where=finite & np.isfinite(other)))
        if not np.array_equal(np.isfinite(before) & ~np.isfinite(after), np.zeros(before.shape, bool)):
            return False
        if apart > shift:
            return False
    return True
