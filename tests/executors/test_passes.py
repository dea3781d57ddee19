"""The passes of the eager executor: their order meets their requirements, and their declared facts hold."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torchrlopt.errors import LoweringError
from torchrlopt.executors.eager.executor import assemble
from torchrlopt.executors.eager.guard import are_finite
from torchrlopt.executors.eager.inventory import inventory
from torchrlopt.executors.eager.kernels import packing
from torchrlopt.executors.eager.passes import LOWERED, PASSES, Fact, Pass, Program, checked_order
from torchrlopt.executors.lowering.fx_values import is_mutable
from torchrlopt.options import LoweringOptions

aten = torch.ops.aten
PACKING = {packing.PACK_CONVOLUTION, packing.PACK_TRANSPOSED, packing.PACK_LINEAR}


def depends(later: Pass, earlier: Pass) -> bool:
    """Whether the later pass rests on the earlier, or ends what the earlier rests on."""
    return bool(later.needs & earlier.gives or later.ends & earlier.needs)


DEPENDENT = [
    (i, j) for i, j in itertools.combinations(range(len(PASSES)), 2) if depends(PASSES[j], PASSES[i])
]


def name_of_pair(pair: tuple[int, int]) -> str:
    return "-".join(PASSES[at].name for at in pair)


def test_names_are_distinct_and_the_order_holds() -> None:
    assert len({each.name for each in PASSES}) == len(PASSES)
    assert checked_order(PASSES) == PASSES


@pytest.mark.parametrize("pair", DEPENDENT, ids=name_of_pair)
def test_dependent_passes_cannot_change_places(pair: tuple[int, int]) -> None:
    i, j = pair
    swapped = list(PASSES)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    with pytest.raises(LoweringError, match="out of order"):
        checked_order(swapped)


@pytest.mark.parametrize("name", ["split_weights", "pack_convolutions", "find_device", "find_finite"])
def test_a_pass_that_others_rest_on_cannot_be_left_out(name: str) -> None:
    with pytest.raises(LoweringError, match="out of order"):
        checked_order([each for each in PASSES if each.name != name])


def test_the_message_names_the_pass_and_what_it_lacks() -> None:
    lonely = dataclasses.replace(PASSES[-1], needs=Fact.APART)
    with pytest.raises(LoweringError, match="forget_values") as caught:
        checked_order([lonely])
    assert "APART" in str(caught.value)


# ---- facts are true


def calls(program: Program) -> list[fx.Node]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


def is_overload(node: fx.Node) -> bool:
    # Layouts are restored by functions of this package.
    ours = getattr(node.target, "__module__", "").startswith("torchrlopt.")
    return isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem or ours


def packs(graph: fx.Graph) -> bool:
    return any(node.target in PACKING for node in graph.nodes)


def reads_only(node: fx.Node, names: set[str]) -> bool:
    return bool(node.all_input_nodes) and all(source.name in names for source in node.all_input_nodes)


HOLDS: dict[Fact, Callable[[Program], bool]] = {
    Fact.VALUES: lambda program: all("val" in node.meta for node in calls(program)),
    Fact.OVERLOADS: lambda program: (
        all(map(is_overload, calls(program))) and not program.graph.find_nodes(op="call_method")
    ),
    Fact.FUNCTIONAL: lambda program: not any(map(is_mutable, calls(program))),
    Fact.WHOLE: lambda program: any(reads_only(node, {"w_1", "v_1"}) for node in calls(program)),
    Fact.PLAIN_WEIGHTS: lambda program: not packs(program.graph),
    Fact.NO_COPIES: lambda program: all(node.target is not aten.clone.default for node in calls(program)),
    Fact.FINITE: lambda program: bool(program.finite),
    Fact.PACKED_LINEARS: lambda program: any(node.target == packing.LINEAR for node in calls(program)),
    Fact.PACKED_CONVOLUTIONS: lambda program: bool(program.convolutions),
    Fact.ALL_READ: lambda program: all(
        node.users or (program.needs_finite is not None and node is program.needs_finite[1])
        for node in calls(program)
    ),
    Fact.GUARDED: lambda program: program.needs_finite is not None,
    Fact.APART: lambda program: program.split is not None and program.parts.main is not program.module,
    Fact.PLACED: lambda program: program.is_on_cuda is not None,
}
"""How each fact shows on the graph; strides show in what the outputs are."""

SEEN = functools.reduce(operator.or_, HOLDS)


def network(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor]:
    y = F.relu(F.conv2d(x, w * 2).clone())
    z = torch.sigmoid(y.flatten(1) @ (v + v)).clone()
    return (torch.exp(z * 2),)


def arguments() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 16, 16, 16), torch.randn(32, 16, 3, 3) / 8, torch.randn(32 * 14 * 14, 64) / 32]


def test_a_plain_program_runs_pytorchs_own_calls() -> None:
    args, found = arguments(), {}
    for is_plain in (True, False):
        module = make_fx(network, tracing_mode="fake")(*args)
        run = assemble(module, ("w_1", "v_1"), LoweringOptions(), is_plain)
        with torch.no_grad():
            torch.testing.assert_close(run(*args), network(*args), rtol=1e-4, atol=1e-4)
        found[is_plain] = inventory(run.main.graph)
    assert found[True].packed == {}
    assert found[True].plain == {"convolution": 1, "product": 1}
    assert sum(found[False].packed.values()) == 2


@pytest.mark.skipif(not packing.can_pack(torch.ones(1)), reason="this build of PyTorch has no oneDNN kernels")
@pytest.mark.usefixtures("without_own_kernels")  # which guard nothing
def test_facts_hold_as_long_as_they_are_said_to() -> None:
    args, fakes = arguments(), FakeTensorMode()
    with torch.no_grad(), fakes:
        module = make_fx(network)(*[fakes.from_tensor(arg) for arg in args])
    program = Program(module, ("w_1", "v_1"), is_real=True)
    facts = LOWERED
    ended = Fact(0)
    for each in PASSES:
        for fact in each.ends & facts & SEEN:
            assert HOLDS[fact](program), f"{each.name} ends {fact}, which held"
        each.run(program)
        facts = (facts | each.gives) & ~each.ends
        for fact in facts & SEEN:
            assert HOLDS[fact](program), f"{fact} after {each.name}"
        for fact in each.ends & SEEN:
            if not HOLDS[fact](program):
                ended |= fact
    assert (Fact.VALUES | Fact.OVERLOADS | Fact.FUNCTIONAL | Fact.WHOLE) in ended, (
        "the model exercises the ends"
    )
    with torch.no_grad():
        kept = program.parts.prologue(*[args[at] for at in program.parts.weights])
        assert are_finite(kept[-1:])
        (got,) = program.parts.main(*[args[at] for at in program.parts.inputs], *kept)
        (want,) = network(*args)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert got.stride() == want.stride()
