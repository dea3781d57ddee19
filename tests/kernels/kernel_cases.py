"""Helpers for tests of the kernel layer: trace, run all passes, compare with float64."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchrlopt import _C
from torchrlopt.executors.eager.dispatch import use_builtins
from torchrlopt.executors.eager.inplace import reuse_memory
from torchrlopt.executors.eager.kernels import indirect
from torchrlopt.executors.eager.kernels.epilogues import NONE, Epilogue
from torchrlopt.executors.eager.passes import PASSES, Program, run_passes
from torchrlopt.executors.eager.sequences import with_sequences
from torchrlopt.executors.weights.split_fx import Split
from torchrlopt.executors.weights.static_part import static_nodes

# Of the largest magnitude in the reference: rounding of sums of up to 1152 products.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 1e-12}


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
}
"""Those that our kernels can fuse."""

# Where oneDNN has another name for an activation, or parameters.
_EPILOGUES = {
    "relu6": Epilogue("hardtanh", (0.0, 6.0)),
    "leaky_relu": Epilogue("leaky_relu", (0.2,)),
    "silu": Epilogue("swish"),
}


def epilogue(activation: str) -> Epilogue:
    """What our kernels are given for an activation of `ACTIVATIONS`."""
    return _EPILOGUES.get(activation) or indirect.epilogue_of(activation)


@dataclass
class Prepared:
    """A function after the kernel layer.

    Attributes:
        split: prologue and main part, before in-place forms and builtins.
        targets: names of the operators of the main part, in order.
        run: takes all arguments, returns the tuple of outputs.
        gathered: the main part with sequences of kernels; None where there are none. `run` runs both.
    """

    split: Split
    targets: list[str]
    run: Callable[..., tuple[Any, ...]]
    gathered: fx.GraphModule | None = None

    def count(self, name: str) -> int:
        return sum(name in target for target in self.targets)


def prepare(
    function: Callable[..., Any],
    args: Sequence[Tensor],
    static: Sequence[int],
    dynamic: bool = False,
    is_real: bool = False,
    change: Callable[[fx.Graph, set[fx.Node]], None] = lambda graph, static: None,
) -> Prepared:
    """Trace `function` on the arguments; those at the positions `static` are weights.

    With `dynamic`, every size of the other arguments is symbolic; with `is_real` rounding may differ. Before
    all passes `change` is called with the nodes that are the same in every call.
    """
    shapes = ShapeEnv() if dynamic else None
    fakes = FakeTensorMode(shape_env=shapes, static_shapes=not dynamic)
    given = [fakes.from_tensor(arg, static_shapes=not dynamic or n in static) for n, arg in enumerate(args)]
    # Without the Python dispatcher older versions of torch ask for numbers where there are symbols.
    symbols = enable_python_dispatcher() if dynamic else contextlib.nullcontext()
    with torch.no_grad(), fakes, symbols:
        module = make_fx(function)(*given)
    placeholders = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    program = Program(module, [placeholders[position] for position in static], is_real)
    change(module.graph, static_nodes(module.graph, program.static))
    run_passes(program, itertools.takewhile(lambda _: program.split is None, PASSES))
    split = program.parts
    gathered = with_sequences(split.main)
    targets = [str(node.target) for node in split.main.graph.nodes if node.op == "call_function"]
    main = fx.GraphModule(split.main, fx.Graph())
    main.graph.output(main.graph.graph_copy(split.main.graph, {}))
    for each in (main, gathered):
        if each is not None:
            reuse_memory(each)
            use_builtins(each)

    def run(*given: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            ready = split.prologue(*[given[position] for position in split.weights])
            inputs = [given[position] for position in split.inputs]
            result = as_tuple(main(*inputs, *ready))
            if gathered is None:
                return result
            of_sequences = as_tuple(gathered(*inputs, *ready))
        _same(of_sequences, result)
        return of_sequences

    return Prepared(split, targets, run, gathered)


def _same(got: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Gathered calls give what single ones give, with the same strides."""
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        # ATen has some activations of bfloat16 that end on the other side of a rounding, and what is computed
        # from them may be smaller than they are.
        is_half = ours.dtype is torch.bfloat16
        rtol, atol = (2**-7, 2**-10) if is_half else (1e-5, 1e-6)
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        assert ours.stride() == theirs.stride()


def as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def gathered_calls(prepared: Prepared) -> list[str]:
    """Names of what the gathered graph calls, in order."""
    assert prepared.gathered is not None
    return [node.name for node in prepared.gathered.graph.nodes if node.op.startswith("call")]


def kernel_sequences(prepared: Prepared) -> list[_C.KernelSequence]:
    """What runs several calls as one."""
    nodes = [] if prepared.gathered is None else prepared.gathered.graph.nodes
    targets = [node.target for node in nodes if node.op == "call_function"]
    return [each.sequence for each in targets if hasattr(each, "sequence")]


def check(
    function: Callable[..., Any],
    args: Sequence[Tensor],
    static: Sequence[int],
    dynamic: bool = False,
    is_real: bool = False,
) -> Prepared:
    """Prepare, run, and compare numbers with float64 and strides with eager; inputs must not change."""
    prepared = prepare(function, args, static, dynamic, is_real)
    compare(function, args, prepared)
    return prepared


def compare(function: Callable[..., Any], args: Sequence[Tensor], prepared: Prepared) -> None:
    before = [arg.clone() for arg in args]
    got = prepared.run(*args)
    assert all(torch.equal(arg, kept) for arg, kept in zip(args, before, strict=True))
    with torch.no_grad():
        eager = as_tuple(function(*args))
        wide = as_tuple(function(*[arg.double() if arg.is_floating_point() else arg for arg in args]))
    assert len(got) == len(eager)
    for ours, theirs, reference in zip(got, eager, wide, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        if not ours.is_floating_point():
            assert torch.equal(ours, theirs)
            continue
        assert torch.equal(ours.isnan(), reference.isnan())
        finite = reference.isfinite()
        assert torch.equal(ours.isfinite(), finite)
        if finite.any():
            scale = max(1.0, reference[finite].abs().max().item())
            error = (ours.double() - reference)[finite].abs().max().item()
            assert error <= TOLERANCE[args[0].dtype] * scale


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch has so many threads, and so have our kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def window_of(
    weight: Tensor, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, dilation: int = 1
) -> indirect.Window:
    """The window of a convolution with a weight [out, in / groups, height, width]."""
    sizes = ((each, each) if isinstance(each, int) else each for each in (stride, padding, dilation))
    return indirect.Window(weight.shape[0], weight.shape[2:], *sizes)


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    window: indirect.Window | None = None,
    groups: int = 1,
    method: int = indirect.SUMS,
    epilogue: Epilogue = NONE,
    summand: Tensor | None = None,
) -> Tensor:
    """The convolution by our kernel, with a weight packed for the image's type."""
    window = window_of(weight) if window is None else window
    packed = indirect.pack(weight, bias, groups, method, x.dtype)
    return indirect.convolve(x, packed, summand, window.of_convolution(groups, epilogue, method))


def multiplied(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    method: int = indirect.SUMS,
    epilogue: Epilogue = NONE,
) -> Tensor:
    """The product with a weight [out, in] by our kernel, packed for the type of `x`."""
    packed = indirect.pack(weight, bias, 1, method, x.dtype)
    return indirect.linear(x, packed, indirect.numbers_of_product(weight.shape[0], epilogue, method))


def one_by_one(rows: Tensor, weight: Tensor) -> Tensor:
    """The product rows[r, k] weight[o, k] of float32, whose terms are added up one after the other."""
    total = torch.zeros(rows.shape[0], weight.shape[0])
    for left, right in zip(rows.t(), weight.t(), strict=True):
        total.addcmul_(left[:, None], right[None])
    return total
