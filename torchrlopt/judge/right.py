"""Verifies a rewritten graph before it is used.

It must match in structure exactly (count, dtype, shape, strides), in integers bit for bit, and in floating
point to within a small multiple of the original's own error (`TOLERANCES`), against a float64 run of the
original ATen graph.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import fx

from torchrlopt.capture.sampling import num_elements
from torchrlopt.capture.sharing import overlaps
from torchrlopt.errors import RlOptError, UnsupportedError, VerificationError
from torchrlopt.judge.conditioning import Conditioning
from torchrlopt.judge.float64 import MOVES, float64_reference
from torchrlopt.judge.floats import Own, are_close, compare_floats
from torchrlopt.torch_private.pytree import tree_leaves

Callee = Callable[..., Sequence[Any]]

_MOST_ELEMENTS = 1 << 23
"""Largest graph that is run in float64 once more for extreme inputs; resnet50 reads and makes 60 million."""


class Errors(NamedTuple):
    """Errors measured against float64.

    Attributes:
        worst: root mean square error of the worst rewritten output, as a multiple of the original's own; if
            the tolerance's floor decides, in proportion to the floor.
        own: the original's own error in each output.
    """

    worst: float
    own: tuple[Own, ...]


def compare(
    reference: Sequence[Any],
    original: Sequence[Any],
    rewritten: Sequence[Any],
    where: str = "outputs",
    work: Sequence[torch.dtype | None] = (),
    conditioning: Conditioning | None = None,
    is_extreme: bool = False,
) -> Errors:
    """Compare the outputs of the rewritten graph with those of the original.

    Args:
        reference: outputs in float64.
        original: outputs of the original graph in its own dtypes.
        rewritten: outputs of the rewritten graph.
        where: what is compared, for the message.
        work: the dtype each output was computed in, see `computed_in`; empty if not known.
        conditioning: consulted before numbers are rejected that rounding may have changed; see
            `compare_floats`.
        is_extreme: whether the inputs are extreme; see `compare_floats`. Integers that rounding may flip,
            such as which of two equal numbers comes first, are then ignored.

    Raises:
        VerificationError: the structure or an integer differs, or an error exceeds `TOLERANCES`.
    """
    if len(original) != len(rewritten):
        raise VerificationError(
            "the number of outputs differs", where=where, expected=len(original), got=len(rewritten)
        )
    worst, own = 0.0, [Own()] * len(original)
    known = work if len(work) == len(original) else [None] * len(original)
    for index, (ref, old, new) in enumerate(zip(reference, original, rewritten, strict=True)):
        place = f"{where}, output {index}"
        if not isinstance(old, torch.Tensor):
            if type(old) is not type(new) or old != new:
                raise VerificationError("an output differs", where=place, expected=old, got=new)
            continue
        _compare_structure(old, new, place)
        if old.numel() == 0:
            continue
        if old.is_floating_point() or old.is_complex():
            error, own[index] = compare_floats(
                ref, old, new, place, known[index], conditioning, index, is_extreme
            )
            worst = max(worst, error)
        elif not torch.equal(old, new):
            wrong = old != new
            if is_extreme and conditioning is not None:
                wrong &= ~conditioning.flipped_by_noise(index, old)
            count = int(wrong.sum())
            if count == 0:
                continue
            raise VerificationError(
                "integer or bool elements differ", where=place, expected="bit-exact", got=f"{count} differ"
            )
    return Errors(worst, tuple(own))


def _compare_structure(old: torch.Tensor, new: Any, place: str) -> None:
    """Compare dtype, device, shape, and the strides of dimensions that have more than one element."""
    if _described(old) != _described(new):
        raise VerificationError(
            "dtype, device, shape or strides differ",
            where=place,
            expected=_described(old),
            got=_described(new),
        )


def _described(x: Any) -> tuple[Any, ...]:
    if not isinstance(x, torch.Tensor):
        return (type(x).__name__,)
    strides = () if x.numel() == 0 else tuple(st for s, st in zip(x.shape, x.stride(), strict=True) if s > 1)
    return str(x.dtype), str(x.device), tuple(x.shape), strides


def verify(aten: torch.fx.GraphModule, original: Callee, rewritten: Callee, inputs: Sequence[Any]) -> Errors:
    """Run both callables and the float64 reference on the same inputs and compare.

    Raises:
        UnsupportedError: the original cannot be run on these inputs.
        VerificationError: the rewritten graph is wrong, or fails to run.
        RlOptError: raised by the executor itself.
    """
    return verify_against(standard(aten, original, inputs), rewritten, inputs)


@dataclasses.dataclass(frozen=True)
class Standard:
    """What rewritten graphs are compared with; shared by all that are given equal inputs."""

    aten: torch.fx.GraphModule
    inputs: Sequence[Any]
    original: tuple[Any, ...]
    sharing: list[str | None]
    work: tuple[torch.dtype | None, ...]
    conditioning: Conditioning

    @functools.cached_property
    def reference(self) -> tuple[Any, ...]:
        """Outputs in float64; raises UnsupportedError if the graph cannot run in it."""
        with _refused("float64"):
            return float64_reference(self.aten, self.inputs)


def standard(
    aten: torch.fx.GraphModule, original: Callee, inputs: Sequence[Any], is_extreme: bool = False
) -> Standard:
    """Run the original, also on inputs for `verify_extreme`; raises UnsupportedError if it cannot run."""
    with _refused(""):
        old = tuple(original(*inputs))
        sharing = overlaps(old, inputs)
    return Standard(aten, inputs, old, sharing, computed_in(aten), Conditioning(aten, inputs, is_extreme))


def verify_against(known: Standard, rewritten: Callee, inputs: Sequence[Any]) -> Errors:
    """Compare a callable with the standard for these inputs; see `verify`."""
    reference = known.reference
    new = run(rewritten, inputs)
    _compare_sharing(known.sharing, new, inputs, "outputs")
    return compare(reference, known.original, new, "outputs", known.work, known.conditioning)


def verify_extreme(known: Standard, rewritten: Callee) -> None:
    """Compare a callable with the standard for extreme inputs, part by part.

    The outputs of a large graph are compared with the original's, and with float64 only if they are not
    close: the effect of one operator on one element is hardly visible after many others, and float64 takes
    the most time.

    Raises:
        UnsupportedError: the reference cannot be run.
        VerificationError: the rewritten graph is wrong, or fails to run.
        RlOptError: raised by the executor itself.
    """
    old, where = known.original, "extreme inputs"
    new = run(rewritten, known.inputs, where)
    _compare_sharing(known.sharing, new, known.inputs, where)
    is_large = num_elements(known.aten, known.inputs) > _MOST_ELEMENTS
    if is_large and len(old) == len(new) and all(map(_is_close, old, new, [Own()] * len(old), known.work)):
        return
    compare(known.reference, old, new, where, known.work, known.conditioning, is_extreme=True)


def outputs_are_finite(known: Standard) -> bool:
    """Whether the original's outputs are finite: an overflow would hide differences."""
    tensors = (x for x in known.original if isinstance(x, torch.Tensor))
    # float8 has no isfinite
    wide = (x.float() if x.is_floating_point() and x.itemsize == 1 else x for x in tensors)
    return all(bool(x.isfinite().all()) for x in wide)


def confirm(
    aten: torch.fx.GraphModule,
    original: Callee,
    new: Sequence[Any],
    inputs: Sequence[Any],
    where: str,
    own: Sequence[Own] = (),
) -> None:
    """Compare outputs of the rewritten graph with the original's; cheaper than `verify` if they are close.

    Numbers within half the tolerance's floor of the original's also pass `verify`, whatever the original's
    own error is. If float64 has shown that error for other inputs, they may be as far from the original's as
    `verify` allows most numbers to be from float64. Float64 is computed only if they are farther apart.

    `own` has the original's own error in each output, for these weights; it is empty if that is not known.

    Raises:
        UnsupportedError: the original cannot be run on these inputs.
        VerificationError: the outputs are wrong.
    """
    with _refused(where):
        old = tuple(original(*inputs))
    _compare_sharing(overlaps(old, inputs), new, inputs, where)
    known = own if len(own) == len(old) else [Own()] * len(old)
    work = computed_in(aten)
    if len(old) == len(new) and all(map(_is_close, old, new, known, work)):
        return
    with _refused(where):
        reference = float64_reference(aten, inputs)
    compare(reference, old, new, where, work, Conditioning(aten, inputs))


def structured_like(
    original: Callee, new: Sequence[Any], inputs: Sequence[Any], where: str
) -> tuple[Any, ...]:
    """Return the original's outputs, after comparing the structure of others with it.

    Raises:
        UnsupportedError: the original cannot be run on these inputs.
        VerificationError: the number of outputs differs, or their dtypes, shapes, strides or memory do.
    """
    with _refused(where):
        old = tuple(original(*inputs))
    _compare_sharing(overlaps(old, inputs), new, inputs, where)
    for index, (before, after) in enumerate(zip(old, new, strict=True)):
        if isinstance(before, torch.Tensor):
            _compare_structure(before, after, f"{where}, output {index}")
    return old


@contextmanager
def _refused(where: str) -> Iterator[None]:
    """Wraps runs of the original: the user's operators may reject our inputs with any exception."""
    try:
        with torch.no_grad():
            yield
    except Exception as error:
        raise UnsupportedError(
            "the original graph cannot be run on the inputs of the check",
            where=where,
            got=repr(error),
            is_bug=True,  # it does run for its user
        ) from error


def _is_close(old: Any, new: Any, own: Own, work: torch.dtype | None) -> bool:
    """Whether outputs are equal, or within half the tolerance's floor or the known error; NaN is not."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return type(old) is type(new) and bool(old == new)
    if _described(old) != _described(new):
        return False
    if old.numel() == 0:
        return True
    if old.is_complex():
        old, new = torch.view_as_real(old.resolve_conj()), torch.view_as_real(new.resolve_conj())
    return are_close(old, new, own, work) if old.is_floating_point() else torch.equal(old, new)


def run(rewritten: Callee, inputs: Sequence[Any], where: str = "") -> tuple[Any, ...]:
    """Return the outputs of the rewritten graph.

    Raises:
        VerificationError: it fails.
        RlOptError: raised by the executor itself.
    """
    try:
        with torch.no_grad():
            return tuple(rewritten(*inputs))
    except RlOptError:
        raise
    except Exception as error:  # a wrong lowering may fail in any way inside torch
        raise VerificationError("the rewritten graph fails to run", where=where, got=repr(error)) from error


def _compare_sharing(
    expected: list[str | None], new: Sequence[Any], inputs: Sequence[Any], where: str
) -> None:
    got = overlaps(new, inputs)
    if expected != got:
        raise VerificationError(
            "outputs share memory with other tensors than the original's do",
            where=where,
            expected=expected,
            got=got,
        )


def computed_in(graph: fx.GraphModule) -> tuple[torch.dtype | None, ...]:
    """Return, for each output, the least precise floating dtype of all arithmetic that it depends on.

    Inputs count as exact. Operators that only move elements do not round, and a cast to a wider dtype
    restores no digits. None for an output without floating point arithmetic, and for one that is not a
    tensor.
    """
    found: dict[fx.Node, torch.dtype | None] = {}
    for node in graph.graph.nodes:
        dtypes = [found[each] for each in node.all_input_nodes]
        value = node.meta.get("val")
        if node.op == "call_function" and node.target not in MOVES:
            dtypes += _dtypes(value)
        # A flag or an index is either right or wrong: its readers do not inherit the precision it came from.
        is_exact = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
        found[node] = None if is_exact else _coarsest(dtypes)
    (output,) = graph.graph.find_nodes(op="output")
    return tuple(found[each] if isinstance(each, fx.Node) else None for each in output.args[0])


def _dtypes(value: Any) -> list[torch.dtype]:
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return [each.dtype for each in tensors if each.is_floating_point()]


def _coarsest(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    known = [each for each in dtypes if each is not None]
    return max(known, key=lambda each: torch.finfo(each).eps, default=None)
