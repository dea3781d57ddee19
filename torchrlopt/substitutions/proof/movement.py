"""Data movement operators: which input element each element of the result is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchrlopt.substitutions.proof.forms import Form, choose, where
from torchrlopt.substitutions.proof.polynomial import Poly, as_poly, product, total
from torchrlopt.substitutions.proof.scope import Scope, Unsupported
from torchrlopt.substitutions.proof.tensors import (
    Call,
    Index,
    Number,
    Tensor,
    broadcast_shapes,
    read_broadcast,
    same_shapes,
    same_size,
)


def transpose(call: Call) -> list[Tensor]:
    x = call.tensor(0)
    perm = [call.scope.fixed(each) for each in call.attrs["perm"]] or list(range(x.rank))[::-1]
    shape = tuple(x.shape[axis] for axis in perm)

    def read(index: Index) -> Form:
        source: list[Poly] = [Poly({})] * x.rank
        for position, axis in enumerate(perm):
            source[axis] = index[position]
        return x.read(source)

    return [Tensor(x.dtype, shape, read)]


def with_shape(scope: Scope, x: Tensor, shape: Sequence[Poly]) -> Tensor:
    """The same elements in the same order, in another shape."""
    x = x.elements or x
    if same_shapes(scope, x.shape, shape):
        return x

    def read(index: Index) -> Form:
        if same_shapes(scope, x.shape, shape):  # known by now
            return x.read(index)
        flat = Poly({})
        for at, size in zip(index, shape, strict=True):
            flat = flat * scope.norm(size) + at
        source = []
        for axis in range(x.rank - 1):
            stride = scope.norm(product(x.shape[axis + 1 :]))
            at = scope.quotient(flat, stride)
            source.append(at)
            flat = scope.norm(flat) - scope.norm(at) * stride
        # Splitting an index changes the expressions of the earlier ones.
        return x.read([scope.norm(each) for each in ([*source, flat] if x.rank else [])])

    return Tensor(x.dtype, tuple(shape), read, elements=x)


def reshape(call: Call) -> list[Tensor]:
    x, scope = call.tensor(0), call.scope
    given = call.sizes("shape")
    shape: list[Poly] = []
    missing = None
    for axis, size in enumerate(given):
        if scope.value_of(size) == 0 and call.fixed("allowzero") == 0:
            scope.fixed(size)
            shape.append(x.shape[axis])
        elif scope.value_of(size) == -1:
            scope.fixed(size)
            missing = axis
            shape.append(as_poly(1))
        else:
            shape.append(size)
    if missing is not None:
        shape[missing] = scope.exact_quotient(product(x.shape), product(shape))
    _assume_same_count(scope, list(x.shape), shape)
    return [with_shape(scope, x, [scope.norm(size) for size in shape])]


def _assume_same_count(scope: Scope, before: list[Poly], after: list[Poly]) -> None:
    """Assumes equal products for sizes that are merged or split consecutively, as in the instance."""
    i = j = 0
    while i < len(before) or j < len(after):
        left, right = before[i : i + 1], after[j : j + 1]
        i, j = i + len(left), j + len(right)
        while scope.value_of(product(left)) != scope.value_of(product(right)):
            if scope.value_of(product(left)) < scope.value_of(product(right)) and i < len(before):
                left.append(before[i])
                i += 1
            elif j < len(after):
                right.append(after[j])
                j += 1
            else:
                break
        if i < len(before) and j == len(after):
            left, i = left + before[i:], len(before)
        if j < len(after) and i == len(before):
            right, j = right + after[j:], len(after)
        scope.assume_equal(product(left), product(right))


def flatten(call: Call) -> list[Tensor]:
    x = call.tensor(0)
    axis = call.axis("axis", x.rank) if call.fixed("axis") != x.rank else x.rank
    shape = [call.scope.norm(product(part)) for part in (x.shape[:axis], x.shape[axis:])]
    return [with_shape(call.scope, x, shape)]


def unsqueeze(call: Call) -> list[Tensor]:
    x = call.tensor(0)
    axes = call.axes("axes", x.rank + len(call.attrs["axes"]))
    rest = iter(x.shape)
    shape = tuple(
        as_poly(1) if axis in axes else next(rest) for axis in range(x.rank + len(call.attrs["axes"]))
    )
    return [
        Tensor(
            x.dtype, shape, lambda index: x.read([at for axis, at in enumerate(index) if axis not in axes])
        )
    ]


def squeeze(call: Call) -> list[Tensor]:
    x, scope = call.tensor(0), call.scope
    axes = call.axes("axes", x.rank)
    if not axes:
        axes = [axis for axis, size in enumerate(x.shape) if scope.value_of(size) == 1]
    for axis in axes:
        scope.assume_equal(x.shape[axis], 1)
    shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)

    def read(index: Index) -> Form:
        rest = iter(index)
        return x.read([Poly({}) if axis in axes else next(rest) for axis in range(x.rank)])

    return [Tensor(x.dtype, shape, read)]


def expand(call: Call) -> list[Tensor]:
    x, scope = call.tensor(0), call.scope
    shape = broadcast_shapes(scope, [x.shape, call.sizes("shape")])
    return [Tensor(x.dtype, shape, lambda index: read_broadcast(scope, x, index))]


def concat(call: Call) -> list[Tensor]:
    scope = call.scope
    parts = [each for each in call.inputs if each is not None]
    axis = call.axis("axis", parts[0].rank)
    shape = list(parts[0].shape)
    for part in parts[1:]:
        for other in range(part.rank):
            if other != axis:
                shape[other] = same_size(scope, shape[other], part.shape[other])
    shape[axis] = scope.norm(total(part.shape[axis] for part in parts))

    def read(index: Index, first: int = 0) -> Form:
        part = parts[first]
        if first == len(parts) - 1:
            return part.read(index)
        rest = [*index[:axis], index[axis] - part.shape[axis], *index[axis + 1 :]]
        return choose(
            scope, part.shape[axis] - index[axis] - 1, lambda: part.read(index), lambda: read(rest, first + 1)
        )

    return [Tensor(parts[0].dtype, tuple(shape), read)]


def split(call: Call) -> list[Tensor]:
    x, scope = call.tensor(0), call.scope
    axis = call.axis("axis", x.rank)
    sizes = call.sizes("sizes")
    scope.assume_equal(x.shape[axis], total(sizes))
    parts = []
    for position, size in enumerate(sizes):

        def read(index: Index, before: tuple[Poly, ...] = tuple(sizes[:position])) -> Form:
            start = scope.norm(total(before))
            return x.read([*index[:axis], index[axis] + start, *index[axis + 1 :]])

        parts.append(Tensor(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :]), read))
    return parts


def slice_(call: Call) -> list[Tensor]:
    x, scope = call.tensor(0), call.scope
    axes = call.axes("axes", x.rank)
    starts, ends = call.sizes("starts"), call.sizes("ends")
    steps = [scope.fixed(step) for step in call.attrs["steps"]] or [1] * len(axes)
    shape = list(x.shape)
    begin: dict[int, Poly] = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size, back = x.shape[axis], as_poly(int(step < 0))
        begin[axis] = _clamped(scope, start, size, as_poly(0), size - back)
        length = _clamped(scope, end, size, -back, size - back) - begin[axis]
        length = length if step > 0 else -length
        if scope.value_of(length) <= 0:
            raise Unsupported("an empty slice")
        scope.assume_at_least(length, 1)
        shape[axis] = scope.quotient(length + (abs(step) - 1), as_poly(abs(step)))
    step_of = dict(zip(axes, steps, strict=True))

    def read(index: Index) -> Form:
        source = [begin[a] + at * step_of[a] if a in begin else at for a, at in enumerate(index)]
        return x.read([scope.norm(each) for each in source])

    return [Tensor(x.dtype, tuple(scope.norm(size) for size in shape), read)]


def _clamped(scope: Scope, position: Poly, size: Poly, low: Poly, high: Poly) -> Poly:
    """A start or an end: counted from the end if negative, then clamped to the range."""
    if scope.value_of(position) < 0:
        scope.assume_at_least(-position, 1)
        position = position + size
    else:
        scope.assume_at_least(position)
    if scope.value_of(position - low) < 0:
        scope.assume_at_least(low - position, 1)
        return scope.norm(low)
    scope.assume_at_least(position, low)
    if scope.value_of(position - high) > 0:
        scope.assume_at_least(position - high, 1)
        return scope.norm(high)
    scope.assume_at_least(high, position)
    return scope.norm(position)


def pad(call: Call) -> list[Tensor]:
    x, scope = call.tensor(0), call.scope
    if call.attrs["mode"] != "constant":
        raise Unsupported("a pad that repeats elements")
    pads = call.sizes("pads")
    before, after = pads[: x.rank], pads[x.rank :]
    for each in pads:
        scope.assume_at_least(each) if scope.value_of(each) >= 0 else scope.assume_at_least(-each, 1)
    fill: Number = call.attrs["value"]
    shape = tuple(scope.norm(s + a + b) for s, a, b in zip(x.shape, before, after, strict=True))

    def read(index: Index) -> Form:
        source = [scope.norm(at - start) for at, start in zip(index, before, strict=True)]

        def inside(axis: int) -> Form:
            if axis == x.rank:
                return x.read(source)
            return choose(
                scope,
                source[axis],
                lambda: choose(
                    scope, x.shape[axis] - source[axis] - 1, lambda: inside(axis + 1), lambda: fill.form
                ),
                lambda: fill.form,
            )

        return inside(0)

    return [Tensor(x.dtype, shape, read)]


def trilu(call: Call) -> list[Tensor]:
    x, scope = call.tensor(0), call.scope
    is_upper, k = call.fixed("upper"), scope.norm(call.attrs["k"])

    def read(index: Index) -> Form:
        above = index[-1] - index[-2] - k
        return where(scope, above if is_upper else -above, x.read(index))

    return [Tensor(x.dtype, x.shape, read)]


def constant_of_shape(call: Call) -> list[Tensor]:
    fill: Number = call.attrs["value"]
    return [Tensor(call.attrs["dtype"], tuple(call.sizes("shape")), lambda index: fill.form)]


def gather(call: Call) -> list[Tensor]:
    x, i, scope = call.tensor(0), call.tensor(1), call.scope
    axis = call.axis("axis", x.rank)
    if not i.name:
        raise Unsupported("a gather by computed indices")

    def read(index: Index) -> Form:
        at = index[axis : axis + i.rank]
        if i.content is not None and len(i.content) == 1:
            known = i.content[0]
            known = known + x.shape[axis] if scope.value_of(known) < 0 else known
            return x.read([*index[:axis], scope.norm(known), *index[axis + i.rank :]])
        # An integer input is a function from its index to a position, the same wherever it is read.
        where_at = [scope.norm(each) for each in at]
        if not all(each.variables & scope.below.keys() <= scope.free for each in where_at):
            raise Unsupported("a gather under a sum")
        name = f"{i.name}[{', '.join(map(repr, where_at))}]"
        scope.free.add(name)
        scope.low.setdefault(name, 0)
        scope.below.setdefault(name, x.shape[axis])
        return x.read([*index[:axis], Poly.variable(name), *index[axis + i.rank :]])

    return [Tensor(x.dtype, (*x.shape[:axis], *i.shape, *x.shape[axis + 1 :]), read)]


MOVEMENT: dict[str, Callable[[Call], list[Tensor]]] = {
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Unsqueeze": unsqueeze,
    "Squeeze": squeeze,
    "Expand": expand,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Pad": pad,
    "Trilu": trilu,
    "ConstantOfShape": constant_of_shape,
    "Gather": gather,
}
