"""The eager executor: unchanged parts are the original program, and outputs match its outputs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.capture.capture_calls import Capture, capture_function, capture_module
from torchrlopt import _C
from torchrlopt.errors import LoweringError, OptionsError
from torchrlopt.executor_table import names
from torchrlopt.executors.lowering.onnx_to_aten import lower_captured
from torchrlopt.executors.registry import get
from torchrlopt.onnx.reader import read
from torchrlopt.onnx.writer import write
from torchrlopt.options import LoweringOptions

LIBRARY = _C.Library("""
substitution double_neg exact
  t = Neg(x)
  y = Neg(t)
=>
  y = x
proof test

substitution distribute
  t = Add(x, y)
  z = Mul(t, w)
=>
  a = Mul(x, w)
  b = Mul(y, w)
  z = Add(a, b)
proof test

substitution relu_to_clip
  y = Relu(x)
=>
  y = Clip(x; min=0.0)
proof test

substitution split_gemm_bias
  y = Gemm(x, w, b; transB=1)
=>
  t = Gemm(x, w; transB=1)
  y = Add(t, b)
proof test
""")


def same(x: Tensor) -> Tensor:
    """`x` by a detour that `double_neg` removes."""
    return x.neg().neg()


def rewritten_model(record: Capture, *steps: str) -> Any:
    """The captured model after the substitutions, each at its first match."""
    captured = record.captured
    program = read(captured.model, captured.static_inputs | captured.constants.keys())
    graph = program.graph
    for step in steps:
        graph = LIBRARY.apply(graph, step, 0)
    return write(dataclasses.replace(program, graph=graph))


def targets(module: torch.fx.GraphModule) -> Counter[str]:
    return Counter(str(node.target) for node in module.graph.nodes if node.op == "call_function")


def check(record: Capture, *steps: str, weights: str = "check") -> Any:
    """Lowers, and asserts values, strides and types against the captured call. Returns the callable."""
    lowered = get("eager").lower(
        rewritten_model(record, *steps),
        record.captured,
        LoweringOptions(weights=weights),  # type: ignore[arg-type]  # a text of a table
    )
    got = lowered(*record.inputs)
    assert len(got) == len(record.outputs)
    for mine, theirs in zip(got, record.outputs, strict=True):
        assert type(mine) is type(theirs)
        if isinstance(theirs, Tensor):
            assert mine.dtype == theirs.dtype
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        else:
            assert mine == theirs
    return lowered


class Block(nn.Module):
    """Convolution, normalisation, attention and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(self.conv(x)).relu()
        z = y.flatten(2).transpose(1, 2)
        z, _ = self.attention(z, z, z, need_weights=False)
        return self.last(nn.functional.gelu(z).mean(1)).softmax(-1), y


def block() -> Capture:
    torch.manual_seed(0)
    return capture_module(Block().eval(), torch.randn(2, 3, 6, 6))


def test_executors_are_found_by_name() -> None:
    assert all(get(name).name == name for name in names())
    with pytest.raises(OptionsError, match="unknown executor"):
        get("nonsense")


def test_what_was_not_rewritten_is_the_original_program() -> None:
    record = block()
    module = lower_captured(rewritten_model(record), record.captured)
    # Capture merges copies and transpositions that change nothing; a view of what was a copy is a reshape.
    merged = {f"aten.{name}.default" for name in ("view", "_unsafe_view", "reshape", "permute", "t", "clone")}
    merged.add("aten.transpose.int")

    def compared(counts: Counter[str]) -> dict[str, int]:
        return {name: count for name, count in counts.items() if name not in merged and "getitem" not in name}

    assert compared(targets(module)) == compared(targets(record.captured.aten))
    for mine, theirs in zip(module(*record.inputs), record.outputs, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_only_the_rewritten_region_is_converted() -> None:
    record = block()
    module = lower_captured(rewritten_model(record, "relu_to_clip"), record.captured)
    changed = targets(module)
    assert changed["aten.clamp.default"] == 1
    assert "aten.relu.default" not in changed
    assert targets(record.captured.aten)["aten.convolution.default"] == changed["aten.convolution.default"]
    check(record, "relu_to_clip")


def test_operands_are_redirected() -> None:
    record = capture_function(lambda x: same(x.sin()).cos(), torch.randn(3))
    module = lower_captured(rewritten_model(record, "double_neg"), record.captured)
    assert targets(module) == {"aten.sin.default": 1, "aten.cos.default": 1}
    check(record, "double_neg")


def test_an_operator_that_reads_memory_as_dense_gets_it_dense() -> None:
    def bags(table: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        # The copy changes nothing but the strides: capture merges it with its operand.
        return torch.ops.aten._embedding_bag(table, ids[:, 0].clone(), offsets)[0].sin()

    table, ids = torch.randn(9, 4), torch.randint(9, (3, 2))
    record = capture_function(bags, table, ids, torch.arange(3))
    module = lower_captured(rewritten_model(record), record.captured)
    assert torch.equal(module(*record.inputs)[0], table[ids[:, 0]].sin())


def test_a_view_of_a_result_with_other_strides_is_still_right() -> None:
    # The addition now comes after the multiplications: its result has strides of its own.
    def function(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return ((x + y) * w).view(-1).sin()

    check(capture_function(function, torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 3)), "distribute")


def test_as_strided_reads_what_it_was_recorded_on() -> None:
    def function(x: Tensor) -> Tensor:
        return same(x.t()).contiguous().as_strided((2, 2), (1, 2)).sin()

    check(capture_function(function, torch.randn(3, 4)), "double_neg")


def test_a_group_whose_inside_is_read_is_converted() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x)
            return out

    record = capture_module(Linear().eval(), torch.randn(5, 8))
    check(record, "split_gemm_bias")


def test_an_unknown_operator_is_put_back_verbatim() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = torch.kthvalue(same(x) * 2, 2, dim=1)
        return values + 1, indices

    record = capture_function(function, torch.randn(4, 5))
    assert record.captured.opaque
    check(record, "double_neg")


def test_control_flow_is_put_back_with_its_branches() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = same(x) * 2
            z: Tensor = torch.cond(y.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (y,))
            return z + 1

    record = capture_module(Branching(), torch.randn(4, 8))
    lowered = check(record, "double_neg")
    for x in (torch.ones(4, 8), -torch.ones(4, 8)):
        torch.testing.assert_close(lowered(x), tuple(record.captured.aten(x)))


def test_a_lowered_graph_does_not_keep_the_trace_alive() -> None:
    lowered = check(block())
    assert not any(node.meta for node in lowered.main.graph.nodes)


def test_outputs_are_rebuilt_as_the_original_returns_them() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        z = x * 2
        return z, x, z, y.t(), z.t(), z.view(-1)

    record = capture_function(function, torch.randn(3, 4), torch.randn(2, 2))
    lowered = check(record)
    aliases = [t.untyped_storage()._cdata for t in record.outputs]
    mine = [t.untyped_storage()._cdata for t in lowered(*record.inputs)]
    same = [[a == b for b in aliases] for a in aliases]
    assert [[a == b for b in mine] for a in mine] == same


@pytest.mark.parametrize(
    "function",
    [lambda x: same(x), lambda x: same(x).t(), lambda x: (same(x), same(x) * 1.0)],
    ids=["input", "view of an input", "twice"],
)
def test_an_output_that_was_fresh_stays_fresh(function: Callable[..., Any]) -> None:
    record = capture_function(function, torch.randn(3, 4))
    lowered = check(record, "double_neg")
    before = record.inputs[0].clone()
    for output in lowered(*record.inputs):
        output.fill_(7.0)
    assert torch.equal(record.inputs[0], before)


def test_layouts_of_outputs_are_kept() -> None:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.conv(x).relu()
            return out

    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 16, 12, 12).to(memory_format=memory_format)
        check(capture_module(Conv().eval().to(memory_format=memory_format), x), "relu_to_clip")


def test_dynamic_sizes() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 6)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x).relu()
            return y.view(x.shape[0] * x.shape[1], 2, 3).sum(-1)

    record = capture_module(Rows().eval(), torch.randn(3, 5, 8), dynamic=True)
    lowered = check(record, "relu_to_clip")
    for rows in (2, 7, 17):
        changed = torch.randn(rows, 5, 8)
        # The arguments are weights, the size 3 as an int, and the tensor of 3 rows.
        inputs = [changed if isinstance(x, Tensor) and x.ndim == 3 else x for x in record.inputs]
        inputs = [rows if isinstance(x, int) and x == 3 else x for x in inputs]
        for mine, theirs in zip(lowered(*inputs), record.captured.aten(*inputs), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_an_input_that_capture_does_not_know_is_refused() -> None:
    record = capture_function(lambda x: x.sin(), torch.randn(3))
    other = capture_function(lambda x, y: x + y, torch.randn(3), torch.randn(3))
    with pytest.raises(LoweringError, match="none of the captured graph's"):
        get("eager").lower(other.captured.model, record.captured, LoweringOptions())
