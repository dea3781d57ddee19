"""The kernels as PyTorch operators: schemas and fakes are correct, export and compilers can call them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.image_cases import rand, weight
from torchrlopt import _C
from torchrlopt.executors.eager.kernels import cublas, cudnn, indirect, operators, pixels, sequence
from torchrlopt.executors.eager.kernels.dtypes import KERNEL_DTYPES
from torchrlopt.executors.eager.kernels.library import NAMESPACE, is_ours

pytestmark = pytest.mark.skipif(indirect.kernels() is None, reason="no kernels for this processor")

ours = getattr(torch.ops, NAMESPACE)
WINDOW = ([3, 3], [2, 1], [1, 1, 0, 1], [1, 1])
POINT = ([1, 1], [1, 1], [0, 0, 0, 0], [1, 1])


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of an operator.

    Attributes:
        args: its arguments for images of a type.
        tests: of opcheck; None for all.
    """

    op: Any
    args: Callable[[torch.dtype], tuple[Any, ...]]
    tests: tuple[str, ...] | None = None


def image(dtype: torch.dtype, *shape: int) -> Tensor:
    return rand(*shape).to(dtype).contiguous(memory_format=torch.channels_last)


def pack(dtype: torch.dtype, *shape: int, groups: int = 1, method: int = 0) -> Tensor:
    return ours.pack(weight(*shape).to(dtype), rand(shape[0]).to(dtype), groups, method, dtype)


def room(dtype: torch.dtype) -> Tensor:
    return image(dtype, 2, 40, 9, 10)


def program(has_room: bool = False) -> str:
    """conv, gelu to float32, slice, max pool; with a room a convolution that writes into it."""
    point = indirect.Window(16, (1, 1), (1, 1), (0, 0), (1, 1))
    conv = point.of_convolution(1, indirect.NONE)
    pool = indirect.Window(8, (3, 3), (1, 1), (1, 1), (1, 1)).of_pool("max")
    wide = indirect.element_of(torch.float32)
    gelu = (_C.POINTWISE_OPERATIONS.index("activate"), indirect.EPILOGUES.index("gelu"), 0.0, 0.0, wide)
    number = _C.KERNEL_OPERATIONS.index
    given = 3 if has_room else 2
    instructions = [
        sequence.Instruction(number("convolve"), 0, packed=1, numbers=conv),
        sequence.Instruction(number("pointwise"), given, numbers=gelu),
        sequence.Instruction(number("slice"), given + 1, first_channel=8, numbers=(8,)),
        sequence.Instruction(number("pool"), given + 2, numbers=pool),
    ]
    if has_room:
        instructions.append(
            sequence.Instruction(number("convolve"), 0, packed=1, room=2, first_channel=24, numbers=conv)
        )
    return sequence.Program(given, tuple(instructions), (given + 1, given + 3)).text()


NOT_FUNCTIONALISED = ("test_schema", "test_autograd_registration", "test_faketensor")

CASES = {
    "conv": Case(
        ours.conv.default,
        lambda dtype: (image(dtype, 2, 16, 9, 10), pack(dtype, 24, 16, 3, 3), None, 24, *WINDOW),
    ),
    "conv with all": Case(
        ours.conv.default,
        lambda dtype: (
            *(image(dtype, 2, 16, 9, 10), pack(dtype, 16, 1, 3, 3, groups=16), image(dtype, 2, 16, 9, 10)),
            *(16, [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], 16, 0, "hardtanh", [-0.5, 0.5]),
        ),
    ),
    "conv of what does not lie so": Case(
        ours.conv.default,
        lambda dtype: (rand(2, 16, 9, 10).to(dtype), pack(dtype, 24, 16, 1, 1), None, 24, *POINT),
    ),
    "conv of float32, to float32": Case(
        ours.conv.default,
        lambda dtype: (
            *(rand(2, 16, 9, 10), pack(dtype, 24, 16, 1, 1), None, 24, *POINT),
            *(1, 0, "none", [], dtype, torch.float32),
        ),
    ),
    "pool to float32": Case(
        ours.pool.default,
        lambda dtype: (
            *(image(dtype, 2, 16, 9, 10), *WINDOW[:2], [1] * 4, [1, 1], True, "max"),
            torch.float32,
        ),
    ),
    "linear of float32, to float32": Case(
        ours.linear.default,
        lambda dtype: (
            *(rand(2, 5, 16), pack(dtype, 24, 16, 1, 1), 24, 0, "gelu", [], dtype),
            torch.float32,
        ),
    ),
    "pool": Case(
        ours.pool.default,
        lambda dtype: (image(dtype, 2, 16, 9, 10), *WINDOW[:2], [1] * 4, [1, 1], True, "max"),
    ),
    "mean": Case(
        ours.pool.default, lambda dtype: (image(dtype, 2, 16, 9, 10), [9, 10], *POINT[1:], False, "mean")
    ),
    "linear": Case(
        ours.linear.default,
        lambda dtype: (rand(2, 5, 16).to(dtype), pack(dtype, 24, 16, 1, 1), 24, 0, "gelu"),
    ),
    "channel_shuffle": Case(ours.channel_shuffle.default, lambda dtype: (image(dtype, 2, 16, 9, 10), 4)),
    "attention": Case(
        ours.attention.default,
        lambda dtype: (*(rand(2, 4, 6, 8, seed=n).to(dtype) for n in range(3)), None, False, 0.3, True),
    ),
    "attention by queries": Case(
        ours.attention.default,
        lambda dtype: (*(rand(1, 4, 70, 16, seed=n).to(dtype) for n in range(3)), None, True, 0.3, False),
    ),
    # These are for float32 only.
    "pack_recurrent": Case(
        ours.pack_recurrent.default,
        lambda dtype: ([rand(36, 5), rand(36, 9), rand(36), rand(36)] * 2, 0, 2),
    ),
    "recurrent_layer": Case(
        ours.recurrent_layer.default,
        lambda dtype: (
            *(rand(4, 3, 5), indirect.pack_recurrent([rand(27, 5), rand(27, 9)], 1, 1), None, None),
            *(1, 9, 1),
        ),
    ),
    "recurrent_layer in two directions": Case(
        ours.recurrent_layer.default,
        lambda dtype: (
            *(rand(3, 4, 5).transpose(0, 1), indirect.pack_recurrent([rand(36, 5), rand(36, 9)] * 2, 0, 2)),
            *(rand(2, 3, 9), rand(2, 3, 9), 0, 9, 2),
        ),
    ),
    "pack": Case(ours.pack.default, lambda dtype: (weight(24, 16, 3, 3).to(dtype), None, 1, 0, dtype)),
    "pack of a product": Case(
        ours.pack.default, lambda dtype: (rand(24, 16).to(dtype), rand(24).to(dtype), 1, 0, dtype)
    ),
    "pack_norm": Case(
        ours.pack_norm.default, lambda dtype: (rand(16), None, rand(16), rand(16).abs(), 1e-5, dtype)
    ),
    "concat_buffer": Case(ours.concat_buffer.default, lambda dtype: ([2, 16, 3, 3], dtype), ("test_schema",)),
    "copy_into": Case(ours.copy_into.default, lambda dtype: (image(dtype, 2, 16, 9, 10), room(dtype), 8)),
    "conv_into": Case(
        ours.conv_into.default,
        lambda dtype: (
            image(dtype, 2, 16, 9, 10),
            pack(dtype, 24, 16, 1, 1),
            None,
            room(dtype),
            8,
            24,
            *POINT,
        ),
    ),
    "pool_into": Case(
        ours.pool_into.default,
        lambda dtype: (image(dtype, 2, 16, 9, 10), room(dtype), 8, *POINT, False, "max"),
    ),
    "sequence": Case(
        ours.sequence.default,
        lambda dtype: ([image(dtype, 2, 16, 9, 10), pack(dtype, 16, 16, 1, 1)], program()),
    ),
    "sequence_into": Case(
        ours.sequence_into.default,
        lambda dtype: (
            [image(dtype, 2, 16, 9, 10), pack(dtype, 16, 16, 1, 1)],
            [room(dtype)],
            program(has_room=True),
        ),
        NOT_FUNCTIONALISED,
    ),
    "volume_max_pool": Case(
        pixels.MAX_POOL, lambda dtype: (image(dtype, 2, 16, 9, 10), [3, 3], [2, 2], [1, 1], [1, 1], False)
    ),
    "pixel_mean": Case(
        pixels.PIXEL_MEAN, lambda dtype: (image(dtype, 2, 16, 9, 10), torch.ones(1, 1, 90, dtype=dtype), True)
    ),
    "volume_cat": Case(
        pixels.JOIN, lambda dtype: ([image(dtype, 2, 16, 9, 10), image(dtype, 2, 8, 9, 10)], 1)
    ),
    "pixel_product": Case(
        cudnn.PIXEL_PRODUCT,
        lambda dtype: (image(dtype, 2, 16, 9, 10), weight(8, 16, 1, 1).to(dtype), rand(8).to(dtype)),
    ),
    "linear_activation": Case(
        cublas.LINEAR_ACTIVATION,
        lambda dtype: (rand(2, 5, 16).to(dtype), rand(8, 16).to(dtype), rand(8).to(dtype), False),
    ),
}


@pytest.mark.parametrize("dtype", KERNEL_DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_schema_fake_and_kernel_agree(name: str, dtype: torch.dtype) -> None:
    if indirect.kernels(dtype) is None:
        pytest.skip(f"no kernels of {dtype} for this processor")
    case = CASES[name]
    tests = {} if case.tests is None else {"test_utils": case.tests}
    torch.library.opcheck(case.op, case.args(dtype), **tests)


def test_every_operator_has_a_case() -> None:
    defined = {name for name in dir(ours) if is_ours(getattr(getattr(ours, name), "default", None))}
    assert defined == {case.op.overloadpacket.__name__ for case in CASES.values()}


class Block(torch.nn.Module):
    """Packs once, then two convolutions and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [weight(16, 8, 3, 3), weight(24, 16, 1, 1)]
        for at, each in enumerate(self.weights):
            self.register_buffer(f"packed{at}", ours.pack(each, None, 1, 0, torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        y = ours.conv(x, self.packed0, None, 16, [3, 3], [1, 1], [1] * 4, [1, 1], 1, 0, "relu")
        y = ours.conv(y, self.packed1, None, 24, *POINT)
        z: Tensor = ours.pool(y, [2, 2], [2, 2], [0] * 4, [1, 1], False, "max")
        return z

    def expected(self, x: Tensor) -> Tensor:
        y = F.conv2d(F.relu(F.conv2d(x, self.weights[0], padding=1)), self.weights[1])
        return F.max_pool2d(y, 2)


def test_export_keeps_them(tmp_path: Any) -> None:
    model, x = Block(), rand(2, 8, 8, 8)
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: batch},)), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(ours.conv.default) == 2
    for images in (2, 5):
        x = rand(images, 8, 8, 8)
        torch.testing.assert_close(program.module()(x), model.expected(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.usefixtures("fresh_dynamo")
def test_compilers_call_them(backend: str) -> None:
    model, x = Block(), rand(2, 8, 8, 8)
    with torch.no_grad():
        got = torch.compile(model, backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(got, model.expected(x), rtol=1e-4, atol=1e-5)


def test_a_sequence_is_traced_and_exported() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Tensor, packed: Tensor) -> list[Tensor]:
            made: list[Tensor] = ours.sequence([x, packed], program())
            return made

    given = (image(torch.float32, 2, 16, 9, 10), pack(torch.float32, 16, 16, 1, 1))
    exported = torch.export.export(Net(), given)
    for got, expected in zip(exported.module()(*given), Net()(*given), strict=True):
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()


def test_a_sequence_is_what_its_calls_are() -> None:
    operands = [image(torch.float32, 2, 16, 9, 10), pack(torch.float32, 16, 16, 1, 1)]
    text = program()
    alone = sequence.interpret(sequence.Program.of(text), operands, {})
    for got, expected in zip(ours.sequence(operands, text), alone, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def test_a_view_that_negates_and_a_parameter_are_read() -> None:
    x, packed = image(torch.float32, 2, 16, 9, 10), pack(torch.float32, 24, 16, 1, 1)
    expected = ours.conv(-x, packed, None, 24, *POINT)
    with torch.no_grad():
        got = ours.conv(torch.nn.Parameter(-x), torch.nn.Parameter(packed), None, 24, *POINT)
    assert torch.equal(got, expected)
    assert torch.equal(ours.conv(torch._neg_view(x), packed, None, 24, *POINT), expected)


def test_the_profiler_counts_each_call_once() -> None:
    x, packed = image(torch.float32, 2, 16, 9, 10), pack(torch.float32, 24, 16, 1, 1)
    with torch.profiler.profile() as profiler:
        ours.conv(x, packed, None, 24, *POINT)
        function, args = operators._convolution(x, packed, None, 24, *POINT)
        function(*args)
    found = [event.count for event in profiler.key_averages() if event.key == "torchrlopt::conv"]
    assert sum(found) == 2
