"""Convolutions and pools: operators that look through windows."""

from __future__ import annotations

from collections.abc import Callable

from torchrlopt.substitutions.proof.forms import (
    Form,
    Real,
    add,
    atom,
    fold_over,
    inverse,
    multiply,
    number,
    refined,
    sum_over,
    where,
)
from torchrlopt.substitutions.proof.polynomial import Poly, as_poly
from torchrlopt.substitutions.proof.scope import Scope
from torchrlopt.substitutions.proof.tensors import Call, Index, Tensor, same_size


def _windows(call: Call, rank: int) -> tuple[list[Poly], list[Poly], list[Poly], list[Poly]]:
    """Strides, dilations, and pads before and after the spatial axes."""
    one, zero = as_poly(1), as_poly(0)
    strides = call.sizes("strides") or [one] * rank
    dilations = call.sizes("dilations") or [one] * rank
    pads = call.sizes("pads") or [zero] * (2 * rank)
    for each in pads:
        if call.scope.value_of(each) >= 0:
            call.scope.assume_at_least(each)
    for each in (*strides, *dilations):
        call.scope.assume_positive(each)
    return strides, dilations, pads[:rank], pads[rank:]


def _window_count(call: Call, size: Poly, kernel: Poly, stride: Poly, dilation: Poly, pads: Poly) -> Poly:
    """Number of windows that fit."""
    room = size + pads - dilation * (kernel - 1) - 1
    call.scope.assume_at_least(room)
    return call.scope.quotient(room, stride) + 1


def _inside(call: Call, at: Poly, size: Poly, form: Form, is_padded: bool) -> Form:
    """The form if the position is inside, else 0; without padding every position is."""
    if not is_padded:
        return form
    return where(call.scope, at, where(call.scope, size - at - 1, form))


def conv(call: Call) -> list[Tensor]:
    x, w, scope = call.tensor(0), call.tensor(1), call.scope
    rank = x.rank - 2
    strides, dilations, before, behind = _windows(call, rank)
    group = scope.assume_positive(call.attrs["group"])
    scope.assume_equal(x.shape[1], w.shape[1] * group)
    out_per_group = scope.exact_quotient(w.shape[0], group)
    spatial = [
        _window_count(call, x.shape[2 + i], w.shape[2 + i], strides[i], dilations[i], before[i] + behind[i])
        for i in range(rank)
    ]
    bias = call.tensor(2) if call.has(2) else None

    def read(index: Index) -> Form:
        is_padded = [scope.norm(before[i]) != 0 or scope.norm(behind[i]) != 0 for i in range(rank)]
        first = scope.quotient(index[1], out_per_group) * w.shape[1]
        image, channel = index[0], index[1]

        def at_kernel(position: list[Poly], c: Poly) -> Form:
            if len(position) < rank:
                axis = len(position)
                return sum_over(scope, w.shape[2 + axis], lambda k: at_kernel([*position, k], c))
            at = [
                scope.norm(index[2 + i] * strides[i] + position[i] * dilations[i] - before[i])
                for i in range(rank)
            ]
            form = multiply(
                scope,
                x.read([image, scope.norm(first + c), *at]),
                w.read([scope.norm(channel), c, *position]),
            )
            for i in range(rank):
                form = _inside(call, at[i], x.shape[2 + i], form, is_padded[i])
            return form

        form = sum_over(scope, w.shape[1], lambda c: at_kernel([], c))
        return add(form, bias.read([scope.norm(channel)])) if bias is not None else form

    shape = tuple(scope.norm(size) for size in (x.shape[0], w.shape[0], *spatial))
    if bias is not None:
        same_size(scope, bias.shape[0], w.shape[0])
    return [Tensor(x.dtype, shape, read)]


def conv_transpose(call: Call) -> list[Tensor]:
    x, w, scope = call.tensor(0), call.tensor(1), call.scope
    rank = x.rank - 2
    strides, dilations, before, behind = _windows(call, rank)
    more = call.sizes("output_padding") or [as_poly(0)] * rank
    group = scope.assume_positive(call.attrs["group"])
    scope.assume_equal(x.shape[1], w.shape[0])
    in_per_group = scope.exact_quotient(w.shape[0], group)
    bias = call.tensor(2) if call.has(2) else None
    spatial = [
        (x.shape[2 + i] - 1) * strides[i] + dilations[i] * (w.shape[2 + i] - 1) + 1 + more[i]
        - before[i] - behind[i]
        for i in range(rank)
    ]  # fmt: skip

    def read(index: Index) -> Form:
        which = scope.quotient(index[1], w.shape[1])
        inner = scope.norm(scope.norm(index[1]) - scope.norm(which) * w.shape[1])
        first = which * in_per_group

        def at_kernel(position: list[Poly], c: Poly) -> Form:
            if len(position) < rank:
                axis = len(position)
                return sum_over(scope, w.shape[2 + axis], lambda k: at_kernel([*position, k], c))
            reach = [scope.norm(index[2 + i] + before[i] - position[i] * dilations[i]) for i in range(rank)]
            at = [scope.quotient(each, stride) for each, stride in zip(reach, strides, strict=True)]
            channel = scope.norm(first + c)
            form = multiply(scope, x.read([index[0], channel, *at]), w.read([channel, inner, *position]))
            for i in range(rank):
                form = where(scope, at[i] * strides[i] - reach[i], form)
                form = _inside(call, at[i], x.shape[2 + i], form, True)
            return form

        form = sum_over(scope, in_per_group, lambda c: at_kernel([], c))
        return add(form, bias.read([scope.norm(index[1])])) if bias is not None else form

    return [Tensor(x.dtype, tuple(map(scope.norm, (x.shape[0], w.shape[1] * group, *spatial))), read)]


Window = Callable[[list[Poly]], Form]


def _pool(call: Call, finish: Callable[[list[Poly], Window, Callable[[bool], Window]], Form]) -> list[Tensor]:
    """Reads windows of the spatial axes.

    Args:
        call: of the operator.
        finish: receives the kernel sizes, the value at a window position (0 outside), and two indicators (1
            or 0) of whether a position is inside the input, or inside the input or its padding.
    """
    x, scope = call.tensor(0), call.scope
    rank = x.rank - 2
    rounds_up = call.fixed("ceil_mode")
    kernel = [scope.assume_positive(each) for each in call.attrs["kernel_shape"]]
    strides, dilations, before, behind = _windows(call, rank)
    spatial = []
    for i in range(rank):
        pads = before[i] + behind[i] + (strides[i] - 1 if rounds_up else 0)
        count = _window_count(call, x.shape[2 + i], kernel[i], strides[i], dilations[i], pads)
        if rounds_up:
            # A window that would start after the input and its leading padding is dropped.
            beyond = (count - 1) * strides[i] - x.shape[2 + i] - before[i]
            if scope.value_of(beyond) >= 0:
                scope.assume_at_least(beyond)
                count = count - 1
            else:
                scope.assume_at_least(-beyond, 1)
        spatial.append(scope.norm(count))

    def read(index: Index) -> Form:
        is_padded = [scope.norm(before[i] + behind[i]) != 0 or bool(rounds_up) for i in range(rank)]

        def places(position: list[Poly]) -> list[Poly]:
            return [
                scope.norm(index[2 + i] * strides[i] + position[i] * dilations[i] - before[i])
                for i in range(rank)
            ]

        def value(position: list[Poly]) -> Form:
            at = places(position)
            result = x.read([*index[:2], *at])
            for i in range(rank):
                result = _inside(call, at[i], x.shape[2 + i], result, is_padded[i])
            return result

        def counted(with_padding: bool) -> Window:
            def one(position: list[Poly]) -> Form:
                at = places(position)
                result = number(1)
                for i in range(rank):
                    if not with_padding:
                        result = _inside(call, at[i], x.shape[2 + i], result, is_padded[i])
                    elif rounds_up:
                        result = where(scope, x.shape[2 + i] + behind[i] - at[i] - 1, result)
                return result

            return one

        return finish(kernel, value, counted)

    return [Tensor(x.dtype, tuple(scope.norm(size) for size in (*x.shape[:2], *spatial)), read)]


def _nested_sum(scope: Scope, kernel: list[Poly], body: Window) -> Form:
    def at(position: list[Poly]) -> Form:
        if len(position) == len(kernel):
            return body(position)
        return sum_over(scope, kernel[len(position)], lambda k: at([*position, k]))

    return at([])


def average_pool(call: Call) -> list[Tensor]:
    scope = call.scope
    counts_padding = bool(call.fixed("count_include_pad"))

    def finish(kernel: list[Poly], value: Window, counted: Callable[[bool], Window]) -> Form:
        count = refined(scope, _nested_sum(scope, kernel, counted(counts_padding)))
        return multiply(scope, _nested_sum(scope, kernel, value), inverse(count))

    return _pool(call, finish)


def max_pool(call: Call) -> list[Tensor]:
    present = atom(Real("present"))  # outside is not the same as zero

    def finish(kernel: list[Poly], value: Window, counted: Callable[[bool], Window]) -> Form:
        def marked(position: list[Poly]) -> Form:
            return add(value(position), multiply(call.scope, counted(False)(position), present))

        return fold_over(call.scope, "Max", kernel, marked)

    return _pool(call, finish)
