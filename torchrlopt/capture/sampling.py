"""Inputs for the check: random ones like the user's, extreme ones, smaller batches, or from types alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

import torch

from torchrlopt.torch_private.pytree import tree_leaves

_SYMBOL_SIZE = 3  # the assumed size of a symbolic dimension without an example
_BATCHES = (4, 6, 8, 16)
"""Batch sizes to try; a graph may have constraints on its sizes, such as being even."""
Sizes = dict[Any, int]
"""The sizes of symbols."""


def random_inputs(examples: Sequence[Any], static: Collection[int], seed: int) -> list[Any]:
    """Return inputs like the examples, with other values; torch's global generator is not touched.

    Floating point inputs keep the mean, spread and sign of the example; integer, bool and mask-like inputs
    (only 0, 1 or non-finite values) keep their set of values, shuffled. Weights (positions `static`) keep
    their values, except constant ones (a zero bias, a LoRA matrix at its start), which would hide errors:
    they get a little noise. Numbers (symbolic sizes) stay.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def generator(device: torch.device) -> torch.Generator:
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        return generators[device]

    fresh: list[Any] = []
    for position, example in enumerate(examples):
        if not isinstance(example, torch.Tensor) or example.numel() == 0:
            fresh.append(example)
        elif position in static:
            fresh.append(_jittered(example, generator(example.device)))
        else:
            fresh.append(_like(example, generator(example.device)))
    return fresh


def _jittered(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the weight itself, or with noise in [0, 0.1) added if it is constant.

    It is the same object: what an executor has packed for it also serves the calls after the check.
    """
    if not weight.is_floating_point() or weight.dim() == 0:
        return weight
    values = weight.detach()
    # Comparing the two ends is mostly enough, without a pass over all of it; an embedding begins with zeros.
    start, end = values[(0,) * (weight.dim() - 1)][:64], values[(-1,) * weight.dim()]
    if not bool((start == end).all()) or not bool((values == end).all()):
        return weight
    noise = torch.rand(weight.shape, generator=generator, device=weight.device, dtype=torch.float32)
    return _with_layout(weight.detach() + 0.1 * noise.to(weight.dtype), weight)


def _like(example: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor of the example's type, strides and kind of values."""
    example = example.detach()
    wide = example.double() if example.is_floating_point() else None
    if wide is None or (_is_mask(wide) and example.numel() > 1):
        order = torch.randperm(example.numel(), generator=generator, device=example.device)
        return _with_layout(example.flatten()[order].reshape(example.shape), example)
    mean = wide.mean()
    spread = wide.std() if wide.numel() > 1 else wide.abs().mean()
    noise = torch.randn(example.shape, generator=generator, device=example.device, dtype=torch.float64)
    values = mean + noise * (spread if bool(spread > 0) else 1.0)
    return _with_layout((values.abs() if bool((wide >= 0).all()) else values).to(example.dtype), example)


def _with_layout(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the values in the strides of `like`, which may overlap (an expanded tensor)."""
    if values.stride() == like.stride():
        return values
    extent = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    storage = torch.zeros(extent, dtype=like.dtype, device=like.device)
    if extent >= like.numel():
        storage.as_strided(like.shape, like.stride()).copy_(values)
    else:  # elements share memory, and torch refuses to write to such a view
        storage.copy_(values.flatten()[:extent])
    return storage.as_strided(like.shape, like.stride())


# ---- extreme inputs

_OFFSET, _WIDE, _OUTLIER = 1e3, 30.0, 1e4
"""In spreads of the usual inputs. 16-bit images and coordinates have offsets of thousands; at 30, a sigmoid,
a softplus and the like are in their tails.
"""

_LANES = 4


def extreme_inputs(
    examples: Sequence[Any], usual: Sequence[Any], static: Collection[int]
) -> list[Any] | None:
    """Return inputs whose rows are extreme in different ways; None if no input can be made extreme.

    The first dimension with four or more indices is divided in four: numbers far from zero relative to their
    spread; widely spread numbers, with constant rows among them; usual ones (of `random_inputs`) next to an
    outlier channel, a mask of 0 and 1, and one number that is larger than all others; and tiny ones. If the
    examples' numbers are in [0, 1], so are these: they may be probabilities. Weights stay.
    """
    extreme = list(usual)
    is_changed = False
    for position, (example, values) in enumerate(zip(examples, usual, strict=True)):
        if position in static or not isinstance(values, torch.Tensor) or not values.is_floating_point():
            continue
        if max(values.shape, default=0) < _LANES or not values.numel():
            continue
        known = example.detach().double()  # float8 has no minimum
        if not _is_mask(known):
            extreme[position], is_changed = _extreme(values, known), True
    return extreme if is_changed else None


def _is_mask(example: torch.Tensor) -> bool:
    return bool(((example == 0) | (example == 1) | ~example.isfinite()).all())


def _extreme(usual: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Return extreme numbers in the strides of the usual ones."""
    low, high = float(example.min()), float(example.max())
    is_unit = low >= 0 and high <= 1
    values = usual.double()
    spread = values.std()
    lane = next(dim for dim, size in enumerate(values.shape) if size >= _LANES)
    offset, wide, outlier, tiny = (
        values.movedim(lane, 0).clone(memory_format=torch.contiguous_format).tensor_split(_LANES)
    )
    if not is_unit:
        offset += _OFFSET * spread
        wide *= _WIDE
    if values.dim() > 1:
        wide[:, 0] = wide.mean()
        outlier[:, -1] = (outlier[:, -1] > values.mean()).double()
        outlier[:, 0] *= 1 if is_unit else _OUTLIER
    outlier.view(-1)[outlier.numel() // 2] = high if is_unit else _OUTLIER * (high + spread)
    tiny *= torch.logspace(-3, -12, tiny.numel(), dtype=tiny.dtype, device=tiny.device).view_as(tiny)
    changed = torch.cat([offset, wide, outlier, tiny]).movedim(0, lane)
    most = 1.0 if is_unit else torch.finfo(usual.dtype).max / 4
    return _with_layout(changed.clamp(0.0 if low >= 0 else -most, most).to(usual.dtype), usual)


def num_elements(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> int:
    """Count the numbers that a graph reads and makes for the inputs; those of unknown size are left out."""
    nodes = graph.graph.find_nodes(op="placeholder")
    sizes = sizes_of([node.meta.get("val") for node in nodes], inputs)
    number = functools.cache(lambda expression: _number_of(expression, sizes))
    total = 0
    for node in graph.graph.nodes:
        for leaf in tree_leaves(node.meta.get("val")) if node.op != "output" else ():
            if isinstance(leaf, torch.Tensor):
                dims: tuple[Any, ...] = tuple(leaf.shape)
                total += math.prod(
                    (dim if isinstance(dim, int) else number(dim.node.expr)) or 0 for dim in dims
                )
    return total


def sampled_size(dim: int | torch.SymInt) -> int:
    """The assumed size of a dimension without an example, with each of its symbols as `_SYMBOL_SIZE`."""
    if isinstance(dim, int):
        return dim
    expression = dim.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, _SYMBOL_SIZE)))


# ---- a smaller batch


def reduced_inputs(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], static: Collection[int]
) -> list[Any] | None:
    """Return the first rows of the inputs that a graph was traced for, in the strides that it gives them.

    A graph whose sizes are symbols is right for all sizes that its guards allow. A float64 run on a few rows
    says as much about it as one on the user's whole batch, and takes a fraction of its time and memory.

    Returns:
        None if there is no free first dimension that is larger, or no smaller size fits.
    """
    fakes = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    weights = [fake for at, fake in enumerate(fakes) if at in static and isinstance(fake, torch.Tensor)]
    if len(fakes) != len(inputs) or any(isinstance(dim, torch.SymInt) for w in weights for dim in w.shape):
        return None
    sizes = sizes_of(fakes, inputs)
    firsts: list[Any] = [fake.shape[0] for fake in fakes if isinstance(fake, torch.Tensor) and fake.dim()]
    batches = {
        dim.node.expr: dim for dim in firsts if isinstance(dim, torch.SymInt) and dim.node.expr.is_Symbol
    }
    for size in _BATCHES:
        smaller = {symbol: size for symbol in batches if sizes[symbol] > size}
        if smaller and _is_allowed(next(iter(batches.values())).node.shape_env, sizes | smaller):
            return _cut(fakes, inputs, sizes | smaller)
    return None


def sizes_of(fakes: Sequence[Any], inputs: Sequence[Any]) -> Sizes:
    """Return the sizes of the symbols of placeholders for these inputs: tensors, and ints for sizes."""
    sizes: Sizes = {}
    for fake, example in zip(fakes, inputs, strict=True):
        dims: Any = fake.shape if isinstance(fake, torch.Tensor) else (fake,)
        known = example.shape if isinstance(example, torch.Tensor) else (example,)
        for dim, size in zip(dims, known, strict=True):
            if isinstance(dim, torch.SymInt) and dim.node.expr.is_Symbol:
                sizes[dim.node.expr] = int(size)
    return sizes


def _is_allowed(shape_env: Any, sizes: Sizes) -> bool:
    """Whether these sizes satisfy the guards of the trace."""
    for symbol, size in sizes.items():
        span = shape_env.var_to_range.get(symbol)
        if span is not None and not span.lower <= size <= span.upper:
            return False
    asked = (guard.expr for guard in shape_env.guards)
    return all(expression.subs(sizes) == True for expression in asked)  # noqa: E712  # sympy's true


def _cut(fakes: Sequence[Any], inputs: Sequence[Any], sizes: Sizes) -> list[Any] | None:
    """Cut the inputs to these sizes; None if one of them would not be a part of the example."""
    cut: list[Any] = []
    for fake, example in zip(fakes, inputs, strict=True):
        if not isinstance(fake, torch.Tensor):
            number = _number(fake, sizes) if isinstance(fake, torch.SymInt) else example
            if number is None:
                return None
            cut.append(number)
            continue
        if not any(isinstance(each, torch.SymInt) for each in (*fake.shape, *fake.stride())):
            cut.append(example)
            continue
        known = [_number(each, sizes) for each in (*fake.shape, *fake.stride())]
        numbers = [each for each in known if each is not None]
        if len(numbers) < len(known):
            return None
        shape, strides = numbers[: fake.dim()], numbers[fake.dim() :]
        if not all(0 < size <= old for size, old in zip(shape, example.shape, strict=True)):
            return None
        part = example.detach()[tuple(slice(size) for size in shape)]
        held = torch.empty_strided(shape, strides, dtype=example.dtype, device=example.device)
        if held.untyped_storage().nbytes() < part.nbytes:
            return None  # elements share memory, and cannot be written to separately
        cut.append(held.copy_(part))
    return cut


def _number(value: Any, sizes: Sizes) -> int | None:
    """Return the value of a size or a stride; None if it depends on an unknown symbol."""
    if not isinstance(value, torch.SymInt):
        return value if isinstance(value, int) else None
    return _number_of(value.node.expr, sizes)


def _number_of(expression: Any, sizes: Sizes) -> int | None:
    found = expression.subs(sizes)
    return int(found) if found.is_Integer else None
