"""Runs a loaded program with the kernels of the eager executor, chosen and packed where it is loaded.

A saved program holds PyTorch's operators only, since packed weights depend on the processor. The first call
of each kind of inputs runs both forms and compares them, so that a call is right, and that what the program
refuses is refused; so do some of the calls after a change of the state. The module of a program checks sizes
in each call.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from torchrlopt.api.gradients import is_differentiated
from torchrlopt.capture.exported import STATE, reduced
from torchrlopt.compile.compiled import Compiled
from torchrlopt.compile.fallback import warn_of
from torchrlopt.errors import UnsupportedError, VerificationError, WeightsError
from torchrlopt.executors.eager.executor import assemble
from torchrlopt.judge import right
from torchrlopt.options import LoweringOptions, Numerics
from torchrlopt.report import Status
from torchrlopt.torch_private.modes import is_any_autocast_enabled, is_traced, without_dispatch_modes
from torchrlopt.torch_private.modules import buffers_of
from torchrlopt.torch_private.pytree import tree_flatten, tree_leaves, tree_unflatten
from torchrlopt.torch_private.tensors import dim_of

_MOST_KINDS = 1000
"""Kinds of inputs for which calls have been compared; calls of further ones run the plain program."""


def use_kernels(program: ExportedProgram, module: torch.nn.Module, numerics: Numerics) -> None:
    """Let calls of a program's module run with kernels, if that is possible; warn if an attempt fails.

    Args:
        program: made by `save`.
        module: of the program; calls that are recorded, traced, differentiated or under autocast still run
            it as it is.
        numerics: what counts as equal.
    """
    values = (node.meta.get("val") for node in program.graph.nodes)
    tensors = [leaf for leaf in tree_leaves(list(values)) if isinstance(leaf, torch.Tensor)]
    if any(each.device.type != "cpu" for each in tensors):
        return
    try:
        module.forward = _Calls(program, module, numerics)
    except Exception as error:  # noqa: BLE001  # of any stage: the program runs as it is
        warn_of(error)


class _Calls:
    """The calls of a loaded program.

    Args:
        program: the program.
        module: holds its state, and is the plain form.
        numerics: what counts as equal.
    """

    def __init__(self, program: ExportedProgram, module: torch.nn.Module, numerics: Numerics) -> None:
        self._plain: Callable[..., Any] = module.forward
        self._aten, kept = reduced(program)
        specs = program.graph_signature.input_specs
        user = [place for place, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT]
        placeholders = list(program.graph.find_nodes(op="placeholder"))
        self._varying = _varying([placeholders[place].meta.get("val") for place in user])
        # Each input of the graph is a buffer, by name, or a leaf of the arguments, by number.
        self._sources = [
            str(specs[place].target) if specs[place].kind in STATE else user.index(place) for place in kept
        ]
        self._held: Mapping[str, Any] = buffers_of(module)
        missing = [each for each in self._sources if isinstance(each, str) and each not in self._held]
        if missing:
            raise UnsupportedError(
                "a program's state is not in buffers of its module", got=", ".join(missing)
            )
        lowered, _ = reduced(program)
        names = [str(node.target) for node in lowered.graph.find_nodes(op="placeholder")]
        static = {name for name, each in zip(names, self._sources, strict=True) if isinstance(each, str)}
        with without_dispatch_modes():
            self._lowered = assemble(lowered, static, LoweringOptions(numerics=numerics))
        self._compiled = self._counted()
        (output,) = program.graph.find_nodes(op="output")
        self._results: Sequence[Any] = output.args[0]
        self._in_spec, self._out_spec = program.call_spec.in_spec, program.call_spec.out_spec
        self._is_right_for: dict[Any, bool] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the program computes."""
        if self._compiled.lowered is None or not self._is_plain_inference(args, kwargs):
            return self._plain(*args, **kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        if spec != self._in_spec:
            return self._plain(*args, **kwargs)
        kind = self._kind(leaves)
        is_new = kind not in self._is_right_for
        is_right = len(self._is_right_for) < _MOST_KINDS if is_new else self._is_right_for[kind]
        if None in kind or not is_right:
            return self._plain(*args, **kwargs)
        if is_new:
            expected = self._plain(*args, **kwargs)  # raises what the program raises
            self._try(kind, self._inputs(leaves), expected)
            return expected
        with torch.no_grad():
            new = self._compiled.run(self._inputs(leaves))
        tensors = iter(new)
        flat = [next(tensors) if isinstance(each, fx.Node) else each for each in self._results]
        return tree_unflatten(flat, self._out_spec)

    def _is_plain_inference(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call is only computed: not recorded, traced, differentiated or under autocast."""
        if torch.compiler.is_compiling() or is_traced() or is_any_autocast_enabled():
            return False
        if is_differentiated(args, kwargs):
            return False
        return not torch.is_grad_enabled() or not any(
            each is not None and each.requires_grad for each in self._held.values()
        )

    @property
    def __code__(self) -> types.CodeType:
        """The code of a call, which torch.compile looks up."""
        return type(self).__call__.__code__

    def __reduce__(self) -> tuple[Any, ...]:
        """Vanish from copies of the module: they are modules of torch.fx that run the plain program."""
        return type(None), ()

    def _kind(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Return the kind of a call: sizes that vary count as the power of two that bounds them."""
        if not any(self._varying):
            return tuple(map(_kind_of, leaves))
        kinds = tuple(map(_kind_of, leaves, self._varying))
        if None in kinds:
            return kinds
        # Sizes that must be equal are so in each call of a kind, if they are in its first.
        sizes = [leaf.shape[dim] for leaf, dims in zip(leaves, self._varying, strict=True) for dim in dims]
        return (*kinds, *map(sizes.index, sizes))

    def _inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the inputs of the graph; None for a buffer that was deleted, with which a call fails."""
        return [self._held.get(each) if isinstance(each, str) else leaves[each] for each in self._sources]

    def _counted(self) -> Compiled:
        """Return the form with kernels; if weights change from now on, it compares some calls."""
        return Compiled(self._lowered, self._aten, Status("rewritten", weight_sets=1))

    def _try(self, kind: Any, inputs: Sequence[Any], expected: Any) -> None:
        """Compare a run with kernels with the outputs of the program; note whether they are right."""
        leaves = tree_leaves(expected)
        old = [leaf for leaf, each in zip(leaves, self._results, strict=True) if isinstance(each, fx.Node)]
        try:
            with torch.no_grad():
                new = self._lowered(*inputs)
            self._is_right_for[kind] = False  # unless the comparison succeeds
            right.confirm(self._aten, lambda *_: old, new, inputs, "the first call of a loaded program")
            self._is_right_for[kind] = True
            if len(self._is_right_for) == 1:
                self._compiled = self._counted()  # from these weights on
        except Exception as error:  # noqa: BLE001  # as in every call of ours, the plain program runs
            warn_of(error)
            if not isinstance(error, (WeightsError, VerificationError)):
                self._compiled.lowered = None


def _varying(values: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the dimensions of each input whose sizes vary; none if sizes depend on others or on numbers."""
    if any(isinstance(value, torch.SymInt) for value in values):
        return [()] * len(values)
    shapes = [map(dim_of, value.shape) if isinstance(value, torch.Tensor) else () for value in values]
    named = [{dim: size for dim, size in enumerate(shape) if isinstance(size, str)} for shape in shapes]
    is_simple = all(size.isidentifier() for sizes in named for size in sizes.values())
    return [tuple(sizes) if is_simple else () for sizes in named]


def _kind_of(leaf: Any, varying: Sequence[int] = ()) -> Any:
    """Return what the code of a call depends on; None for what only the plain program takes.

    Args:
        leaf: of the arguments.
        varying: its dimensions of which only the number of bits counts.
    """
    if type(leaf) is torch.Tensor:
        if not varying:
            return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
        shape = tuple(n.bit_length() if dim in varying else n for dim, n in enumerate(leaf.shape))
        # `is_contiguous` ignores strides of dimensions of one element, which may decide the result's layout.
        dense = itertools.accumulate((max(n, 1) for n in leaf.shape[:0:-1]), operator.mul, initial=1)
        strides = leaf.stride()
        return shape, strides == tuple(dense)[::-1] or strides, leaf.dtype, leaf.device
    return None if varying or not isinstance(leaf, bool | int | float | str) else (type(leaf), leaf)
